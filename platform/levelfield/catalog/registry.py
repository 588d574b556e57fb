"""Plugins: folders of the checkout, of --plugins DIR, and of installed packages (entry points).

A plugin is imported or parsed at its first use. One name in two folders is an error that names both.
A folder of plugins has the structure of the checkout: vendors/<name>/, models/<name>/, configs/cases/<name>.yaml,
configs/suites/<name>.yaml, configs/published/<name>.yaml (figures that papers state), configs/reported/<name>.json
(figures read from others' logs). An installed package names such a folder by an entry point of group
`levelfield.plugins`. The entry point is a module; the folder is that of the module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from levelfield.catalog.machine import Machine
from levelfield.checkout import checkout
from levelfield.contracts.checked_adapter import checked_adapter
from levelfield.contracts.vendor import Vendor
from levelfield.errors import DocumentError, UnknownName, UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.specs.base import Document, DocumentCache, load
from levelfield.specs.case import Case
from levelfield.specs.chips import ChipOverlay, ChipsFile
from levelfield.specs.constants import Constants
from levelfield.specs.derivation import Extension, split_name
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.residuals import RESIDUALS_FILE, Residual, read_residuals
from levelfield.specs.selector import split_label, versioned_framework
from levelfield.specs.vendor import VendorFile
from levelfield.user_folders import config_folder

# Some commands read none of these documents, and to make the classes takes a tenth of such a command's time.
if TYPE_CHECKING:
    from levelfield.specs.figures import FigureSet
    from levelfield.specs.reference import Reference
    from levelfield.specs.suite import Suite

ENTRY_POINT_GROUP = "levelfield.plugins"
D = TypeVar("D", bound=Document)
_MANIFESTS = {"framework": ("models", "implementation.yaml"), "vendor": ("vendors", "vendor.yaml")}
_PLUGIN_FOLDERS = ("vendors", "models", "configs", "launchers")
_PLUGIN_FILES = (
    *(f"{folder}/*/{file}" for folder, file in _MANIFESTS.values()),
    *(f"configs/{kind}/*.yaml" for kind in ("cases", "suites", "published", "planner")),
    "launchers/*/launcher.py",
)
_PUNCTUATION = str.maketrans("", "", "-_ ")  # that spellings of a case's name may differ in


def _check_file(option: str, path: Path, kind: str) -> None:
    if not path.is_file():
        fault = "found no regular file" if os.path.lexists(path) else "no such file"
        raise UsageError(f"{option} {path}: {fault}; expected a document of schema levelfield.{kind}/1")


def private_chips_file(option: Path | None) -> Path | None:
    """Return the chips file: the one of --chips, else the user's own if it exists. Raises UsageError."""
    if option is not None:
        _check_file("--chips", option, "chips")
        return option
    try:
        path = config_folder() / "levelfield" / "chips.yaml"
    except UsageError:  # a user without a home has no chips file
        return None
    return path if path.exists() else None


def _file_index(kind: str, pattern: str) -> cached_property[dict[str, Path]]:
    """Return the property of a registry that has the files of a kind by name."""
    return cached_property(lambda registry: registry.collect_files(kind, pattern))


class Registry:
    """All plugins by kind and name.

    chips: a private file that adds and corrects chips of vendors. case_files: cases outside of any folder of plugins.

    A command makes one registry. It reads each document and loads each adapter once. Raises UsageError for a folder
    that holds other things than plugins, or a document with the ending .yml.
    """

    def __init__(
        self, plugin_folders: Iterable[Path] = (), chips: Path | None = None, case_files: Iterable[Path] = ()
    ) -> None:
        self._plugin_folders = tuple(plugin_folders)
        self._chips = chips
        self._case_files = tuple(case_files)
        self.document_cache = DocumentCache()
        self._vendors: dict[str, Vendor] = {}
        self.machine = Machine(lambda name: self.vendor(name))
        expected = "expected one with vendors/, models/, configs/ or launchers/"
        for folder in self._plugin_folders:
            if not folder.is_dir():
                raise UsageError(f"--plugins {folder}: no such folder; {expected}")
            try:  # an empty folder is right: a command may write its first document
                has_no_plugins = any(folder.iterdir()) and not any((folder / part).is_dir() for part in _PLUGIN_FOLDERS)
            except OSError as error:
                raise UsageError(f"--plugins {folder}: cannot be read: {error.strerror}; {expected}") from None
            if has_no_plugins:
                parents = [
                    root
                    for root in folder.absolute().parents[:2]
                    for pattern in _PLUGIN_FILES
                    if any(root.glob(pattern))
                ]
                nested = [f"{folders}/{pattern}" for folders in ("*", "*/*") for pattern in _PLUGIN_FILES]
                children = (path.parents[2] for pattern in nested for path in folder.glob(pattern))
                suggestion = next(
                    (root for root in (*parents, *children) if root.resolve() != checkout().resolve()), None
                )
                hint = f"; give --plugins {suggestion}, or install the package by pip" if suggestion else ""
                raise UsageError(f"--plugins {folder}: found a folder with none of these parts; {expected}{hint}")
            for pattern in (pattern.removesuffix(".yaml") for pattern in _PLUGIN_FILES if pattern.endswith(".yaml")):
                if misnamed := next(folder.glob(f"{pattern}.yml"), None):
                    raise UsageError(f"--plugins {folder}: found {misnamed}, expected the ending .yaml: rename it")

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        """The folders that hold plugins: the checkout, those of --plugins, and those of installed packages."""
        return (checkout(), *self._plugin_folders, *_installed_plugin_folders(tuple(sys.path)))

    @property
    def options(self) -> tuple[str, ...]:
        """The options that make another command know the same names: those of this one."""
        options = {"--plugins": self._plugin_folders, "--case-file": self._case_files}
        words = [word for name, paths in options.items() for path in paths for word in (name, str(path))]
        chips = () if self._chips in (None, private_chips_file(None)) else ("--chips", str(self._chips))
        return (*words, *chips)

    @cached_property
    def cases(self) -> dict[str, Path]:
        """The files of cases by name, those of --case-file among them."""
        cases = self.collect_files("case", "configs/cases/*.yaml")
        for path in self._case_files:
            _check_file("--case-file", path, "case")
            if path.stem in cases:
                raise UsageError(f"two files claim the case '{path.stem}': {cases[path.stem]} and {path}; rename one")
            cases[path.stem] = path
        return cases

    @cached_property
    def all_cases(self) -> dict[str, Path]:
        """The cases, and those that suites derive for rows of published tables, with the suites' files."""
        cases = dict(self.cases)
        for suite, path in self.suites.items():
            for case in self.suite(suite).cases:
                if case.name in cases:
                    paths = f"{cases[case.name]} and {path}"
                    raise UsageError(f"two files claim the case '{case.name}': {paths}; rename one")
                cases[case.name] = path
        return dict(sorted(cases.items()))

    suites = _file_index("suite", "configs/suites/*.yaml")
    references = _file_index("reference", "configs/references/*.json")
    published = _file_index("published set", "configs/published/*.yaml")
    reported = _file_index("reported set", "configs/reported/*.json")
    planner_constants_files = _file_index("planner's constants", "configs/planner/*.yaml")
    frameworks = _file_index("framework", "models/*/implementation.yaml")
    vendors = _file_index("vendor", "vendors/*/vendor.yaml")

    def case(self, name: str) -> Case:
        """Return the whole case, with the values of the case that it extends or is derived from.

        name: also in another spelling, as canonical_case takes it. Raises UnknownName, DocumentError, or UsageError for
        an unknown change of a derived case or a spelling of two cases.
        """
        base, changes = split_name(name)
        base = self.canonical_case(base)
        return changes.apply_to(self._complete_case(base)) if changes.suffix else self._complete_case(base)

    def canonical_case(self, name: str) -> str:
        """Return the case's own name for a name that differs in capitals, `-`, `_` or spaces only, as in `GPT3-13B`.

        An unknown name is returned as it is.
        """
        if name in self.cases:
            return name  # without a look into the suites
        simplified = {case: case.casefold().translate(_PUNCTUATION) for case in (*self.all_cases, name)}
        matches = [case for case in self.all_cases if simplified[case] == simplified[name]]
        if name in matches or not matches:
            return name
        if len(matches) > 1:
            raise UsageError(
                f"case '{name}': found {' and '.join(matches)}, which differ in spelling only; write one of them"
            )
        return matches[0]

    def _complete_case(self, name: str) -> Case:
        """Return the case with what it takes from the case that it extends, which may extend a third.

        Raises DocumentError for a circle of them, and for another number of parameters than the model has.
        """
        path, chain = self.cases.get(name) or self._path("case", name, self.all_cases), [name]
        extension = base = self.extension(name)
        while base is not None:
            if base.extends not in self.cases and base.extends not in self.all_cases:
                base_path = self._path("case", base.name, self.all_cases)
                raise DocumentError(f"{base_path}: key 'extends': {UnknownName('case', base.extends, self.all_cases)}")
            if base.extends in chain:
                circle = " -> ".join([*chain, base.extends])
                raise DocumentError(f"{path}: key 'extends': found a circle, {circle}; end it with a case of its own")
            chain.append(base.extends)
            base = self.extension(base.extends)
        if extension is None:
            case = self.document(Case, "case", name, self.cases)
        else:
            case = extension.apply_to(self._complete_case(extension.extends), str(path))
        if case.parameters is None:
            return case
        count = count_parameters(case.model, case.training.sequence_length)
        if count.total == case.parameters:
            return case
        outside_layers = {
            "embedding": count.embedding, "positions": count.position, "head": count.head, "norm": count.final_norm
        }  # fmt: skip
        counts = ", ".join(f"{name} {number:,}" for name, number in outside_layers.items() if number)
        raise DocumentError(
            f"{path}: key 'parameters': found {case.parameters:,}, expected {count.total:,}, which the model has at "
            f"full scale: {counts}, {count.layers} layers {count.in_layers:,}. The difference is "
            f"{abs(count.total - case.parameters):,}: correct the number or a key of `model`, or the architecture has "
            "a part that the case leaves out"
        )

    def extension(self, name: str) -> Extension | None:
        """Return the changes to another case, from the case's file or its suite; None for a case that extends none."""
        name = self.canonical_case(split_name(name)[0])
        if name not in self.cases:
            suite = self._path("case", name, self.all_cases).stem
            return next(case for case in self.suite(suite).cases if case.name == name)
        content = self.document_cache.content(self.cases[name], Extension.KIND)
        if not isinstance(content, dict) or "extends" not in content:
            return None
        return self.document(Extension, "case", name, self.cases)

    def suite(self, name: str) -> Suite:
        """Return a suite. Raises UnknownName or DocumentError, as do the following."""
        from levelfield.specs.suite import Suite

        return self.document_cache.document(Suite, self._path("suite", name, self.suites))

    def reference(self, name: str) -> Reference:
        from levelfield.specs.reference import Reference

        return self.document(Reference, "reference", name, self.references)

    def published_set(self, name: str) -> FigureSet:
        """Return a set of published figures."""
        from levelfield.specs.figures import FigureSet

        return self.document(FigureSet, "published set", name, self.published)

    def implementation(self, name: str, version: str | None = None) -> tuple[ImplementationFile, Path]:
        """Return a framework's manifest for one of its versions, and its folder. None: the default version.

        A further version has its own requirements in the manifest. Raises UsageError for one that the framework does
        not have, and DocumentError where another framework has the name of its environments.
        """
        file = self.document(ImplementationFile, "framework", name, self.frameworks, "framework")
        path = self.frameworks[name]
        if version in (None, file.version):
            return file, path.parent
        if version not in file.versions:
            versions = ", ".join((f"{file.version} (the default)", *file.versions))
            raise UsageError(
                f"framework {name}: found version {version}, expected one of: {versions}. Name one of them, or "
                f"`{name}` alone for the default; or pin it below `versions` in {path}"
            )
        manifest = file.model_copy(update={"version": version, "requirements": file.versions[version].requirements})
        stem = manifest.stem
        if clash := next((other for other in self.frameworks if other == stem or other.startswith(f"{stem}-")), None):
            raise DocumentError(
                f"{path}: key 'versions.{version}': its environments are named {stem}-..., and so are those of the "
                f"framework {clash}; rename that framework"
            )
        return manifest, path.parent

    def implementation_of_label(self, label: str) -> tuple[ImplementationFile, Path]:
        """Return the manifest and the folder of a label such as `jax` or `jax_0.10.1`. Raises as `implementation`."""
        return self.implementation(label) if label in self.frameworks else self.implementation(*split_label(label))

    def framework_labels(self) -> list[str]:
        """Return every framework, each followed by its further versions."""
        files = (self.implementation(name)[0] for name in sorted(self.frameworks))
        return [versioned_framework(file.framework, version) for file in files for version in (None, *file.versions)]

    def frameworks_reaching(self, vendor: VendorFile) -> list[str]:
        """Return the frameworks that reach the vendor's devices.

        Either vendor.yaml names them in `frameworks`, or their own manifest has the kind of device in `reaches`.
        """
        files = (self.implementation(name)[0] for name in sorted(self.frameworks))
        reaching = {file.framework for file in files if vendor.device_kind in file.reaches}
        return [*vendor.frameworks, *sorted(reaching - set(vendor.frameworks))]

    def planner_constants(self, framework: str) -> Constants | None:
        """Return the planner's constants of a framework; None without a document of them."""
        if framework not in self.planner_constants_files:
            return None
        return self.document(Constants, "planner's constants", framework, self.planner_constants_files, "framework")

    @cached_property
    def planner_residuals(self) -> tuple[Residual, ...]:
        """The published runs beside their plans."""
        return read_residuals(checkout() / RESIDUALS_FILE)

    @cached_property
    def overlay(self) -> ChipOverlay | None:
        """The private chips file. Raises DocumentError when it is wrong or names an unknown vendor."""
        if self._chips is None:
            return None
        overlay = ChipOverlay(self._chips, load(ChipsFile, self._chips))
        for name in overlay.content.vendors:
            if name not in self.vendors:
                raise DocumentError(f"{self._chips}: key 'vendors.{name}': {UnknownName('vendor', name, self.vendors)}")
        return overlay

    def vendor_file(self, name: str) -> VendorFile:
        """Return vendor.yaml with the chips that the private file adds or corrects."""
        file = self.document(VendorFile, "vendor", name, self.vendors)
        return self.overlay.apply_to(file) if self.overlay else file

    def vendor(self, name: str) -> Vendor:
        """Return the vendor's adapter: its own, or without adapter.py the generic one for what vendor.yaml declares.

        Raises DocumentError when adapter.py has no Adapter, or when neither adapter.py nor vendor.yaml finds devices.
        """
        if name in self._vendors:
            return self._vendors[name]
        spec, path = self.vendor_file(name), self.vendors[name]
        adapter = path.with_name("adapter.py")
        if not adapter.exists():
            from levelfield.contracts.declared import DeclaredVendor

            if spec.discovery is None and spec.monitor is None:
                raise DocumentError(
                    f"{path}: found neither 'discovery' nor 'monitor' nor {adapter}; "
                    "expected one of the three to find devices"
                )
            return self._vendors.setdefault(name, DeclaredVendor(spec))
        module_spec = importlib.util.spec_from_file_location(f"levelfield_vendor_{spec.name}", adapter)
        if module_spec is None or module_spec.loader is None or not adapter.is_file():
            raise DocumentError(f"{adapter}: not a Python file; expected the vendor's adapter, or no file")
        module = importlib.util.module_from_spec(module_spec)
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # an adapter may raise anything: name its file
            raise DocumentError(f"{adapter}: cannot be loaded: {type(error).__name__}: {error}") from error
        if not hasattr(module, "Adapter"):
            raise DocumentError(f"{adapter}: found no class 'Adapter', expected one as in levelfield.contracts.vendor")
        try:
            vendor = checked_adapter(cast(Vendor, module.Adapter(spec)), adapter)
        except (Exception, SystemExit) as error:
            raise DocumentError(f"{adapter}: Adapter(spec) raised {type(error).__name__}: {error}") from None
        return self._vendors.setdefault(name, vendor)

    def document(self, cls: type[D], kind: str, name: str, paths: dict[str, Path], key: str = "name") -> D:
        """Return the document of a name. Raises UnknownName, and DocumentError where its key has another one."""
        path = self._path(kind, name, paths)
        document = self.document_cache.document(cls, path)
        if (stored_name := getattr(document, key)) != name:
            raise DocumentError(f"{path}: found the name '{stored_name}', expected '{name}' as in its path")
        return document

    def _path(self, kind: str, name: str, paths: dict[str, Path]) -> Path:
        if name in paths:
            return paths[name]
        hint = None
        if kind == "case":  # the user may mean an entry of a suite, or a file
            rows = ((suite, entry.name) for suite in self.suites for entry in self.suite(suite).entries)
            if suite := next((suite for suite, row in rows if row == name), None):
                hint = f'`{name}` is an entry of a suite: run `--suite {suite} --entry "{name}"`.'
            elif Path(name).suffix in (".yaml", ".yml"):
                hint = (
                    f"A file outside of configs/cases is given with --case-file {name}, and its case is called "
                    f"'{Path(name).stem}'."
                )
        raise UnknownName(kind, name, paths, hint=hint or self.absence_hint(kind, name, "`show` shows all."))

    def absence_hint(self, kind: str, name: str, otherwise: str) -> str:
        """Return what a folder or a file of this name lacks to be a plugin, or the searched folders and `otherwise`."""
        for root in self.roots if name and Path(name).name == name else ():
            if kind in _MANIFESTS and (folder := root / _MANIFESTS[kind][0] / name).is_dir():
                return f"{folder} exists and has no {_MANIFESTS[kind][1]}, expected one."
            if kind == "case" and (file := root / "configs" / "cases" / f"{name}.yml").is_file():
                return f"{file} exists, expected the ending .yaml: rename it."
        searched = ", ".join(str(root) for root in self.roots)
        return f"Searched: {searched}; --plugins DIR adds a folder. {otherwise}"

    def collect_files(self, kind: str, pattern: str) -> dict[str, Path]:
        """Return the files that match in any root, by what the star of the pattern stands for.

        Raises UsageError for one name in two roots.
        """
        paths: dict[str, Path] = {}
        for root in self.roots:
            for path in sorted(root.glob(pattern)):
                name = path.stem if "*" in Path(pattern).name else path.parent.name
                if name in paths:
                    raise UsageError(f"two plugins claim the {kind} '{name}': {paths[name]} and {path}; remove one")
                paths[name] = path
        return paths


@lru_cache(maxsize=8)
def _installed_plugin_folders(path: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the folders of installed packages that bring plugins. path: Python's, on which the answer depends."""
    specs = (importlib.util.find_spec(point.module) for point in entry_points(group=ENTRY_POINT_GROUP))
    return tuple(Path(spec.origin).parent for spec in specs if spec and spec.origin)
