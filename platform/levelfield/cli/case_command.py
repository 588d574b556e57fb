"""`case` (bring your own): write a case from a published config.json, and check it
`case new`: write a case for the model of a config.json
`case check`: count parameters and plan it on every framework; runs nothing
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import add_chips_option, add_json_option, registry_of
from levelfield.cli.terminal import (
    checks_as_json,
    print_check_summary,
    print_checks,
    print_command,
    print_wrapped,
    program_command,
    short_path,
)
from levelfield.errors import GateFailed, UsageError
from levelfield.specs.readable_json import json_text

_CASE_HELP = """\
Bring a case. docs/writing-a-case.md has every key.

examples:
  run_benchmarks.py case new my_llama --from config.json
  run_benchmarks.py case check my_llama
"""
_NEW_HELP = """\
Write a case for a model by its config.json. Kinds that are read: chatglm,
cohere, cohere2, deepseek, falcon, gemma, glm4_moe, gpt2, gpt_neox, granite,
internlm, internlm2, llama, minicpm, minimax_m2, mistral, mixtral, olmo2, olmo3,
orion, phi3, qwen, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3 and stablelm.
A key that a case cannot say is refused by its name, and nothing is written. The
training is Levelfield's choice, to be replaced.

examples:
  run_benchmarks.py case new my_llama --from config.json --output DIR
  run_benchmarks.py case new my_llama --from config.json --parameters 8030261248
"""
_CHECK_HELP = """\
Count a case's parameters, name what each framework refuses, and plan the smoke
scale on a CPU and the full scale on --hardware. Nothing is run. Exit code
4 unless every check passes or does not apply.

examples:
  run_benchmarks.py case check my_llama --plugins DIR
  run_benchmarks.py case check my_llama --hardware "4x8 A100-SXM4-80GB"
"""


def _create(options: argparse.Namespace) -> int:
    from levelfield.measure.parameter_counts import count_parameters
    from levelfield.testing.case_draft import create_case
    from levelfield.testing.published_config import read_config

    registry, plugins_folder = registry_of(options), options.output or checkout()
    ignored = sorted(set(options.ignore))
    published = read_config(options.config, frozenset(ignored))
    path = create_case(options.name, options.config, published, ignored, options.parameters, plugins_folder, registry)
    print_wrapped(f"created  {short_path(path)}")
    count = count_parameters(published.model, published.max_sequence_length).total
    print_wrapped(f"         {count:,} parameters")
    for remark in published.remarks:
        print_wrapped(f"         {remark}")
    if published.left_out:
        print_wrapped(f"         left out, as they change nothing: {', '.join(published.left_out)}")
    if ignored:
        print_wrapped(f"         left out by --ignore: {', '.join(ignored)}")
    if assumed := {key: value for key, value in published.assumed.items() if value is not None}:
        values = ", ".join(f"{key} {json.dumps(value)}" for key, value in assumed.items())
        print_wrapped(f"         not read from {options.config.name}, so transformers' defaults: {values}")
    print_wrapped("Next:")
    plugins_option = [f"--plugins {short_path(plugins_folder)}"] if options.output else []
    print_command(f"{program_command()} case check {options.name}", *plugins_option)
    return 0


def _check(options: argparse.Namespace) -> int:
    from levelfield.specs.suite import read_hardware
    from levelfield.testing.case_checks import DEFAULT_HARDWARE, CaseSubject, check_case

    registry = registry_of(options)
    case = registry.case(options.name)
    try:
        hardware = DEFAULT_HARDWARE if options.hardware is None else read_hardware(options.hardware)
    except ValueError as error:
        raise UsageError(f"--hardware: {error}") from None
    findings = print_checks(check_case(CaseSubject(registry, case, hardware)), width=11, quiet=options.json)
    values = checks_as_json(findings)
    if options.json:
        print(json_text({"case": case.name, **values}))
    else:
        print_check_summary(case.name, findings)
    return 0 if values["passes"] else GateFailed.exit_code


def _add_create_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the case's name")
    parser.add_argument(
        "--from", dest="config", type=Path, required=True, metavar="FILE", help="Hugging Face's config.json of a model"
    )
    parser.add_argument("--parameters", type=int, metavar="N", help="the published number, to which the model is held")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="leave out a key that a case cannot say and that changes nothing here; may be repeated",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write DIR/configs/cases/NAME.yaml")


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("name", metavar="NAME", help="the case's name")
    option("--hardware", metavar="HARDWARE", help='plan the full scale for it (default: "1x8 H100-SXM5-80GB")')
    add_json_option(parser)
    add_chips_option(parser)


COMMANDS = {
    "case": Command(_CASE_HELP),
    "case new": Command(_NEW_HELP, _add_create_options, _create),
    "case check": Command(_CHECK_HELP, _add_check_options, _check),
}
