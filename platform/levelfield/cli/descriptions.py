"""The texts of --help above the options: what a command does, and examples of it. Lines have at most 80 columns."""

from __future__ import annotations

RUN = """\
Train one case on this machine and compute its result from the raw files.

examples:
  run_benchmarks.py --case gpt3_6.7B:torch          smoke without accelerator
  run_benchmarks.py --case llama3_8b:torch:cpu:1:2  two processes
  run_benchmarks.py --case gpt3_6.7B:torch --layout TP2PP1 --dry-run
  run_benchmarks.py --suite smoke --repeat 3
  run_benchmarks.py --suite oneflow_gpt --dry-run   as a table

a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
versions: those of the framework's manifest; without one, its default
layouts: DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), TP1PP1SH2SP8
(sharding stage and degree), 1n_8g_dp_4bs; +seq adds sequence parallelism

other commands (each has --help):
  list       cases, frameworks, vendors, chips and suites
  show       every value of a case, at full and at smoke scale
  plan       memory and tokens/s of every layout of a case, on any devices
  sweep      run the plan's best layouts; compare prediction and measurement
  report     results of one run or several: table, markdown, csv, pages
  serve      show the pages of report --html on this machine
  compare    ratios of runs with intervals; scaling; case x vendor matrices
  reveal     check withheld values against their commitments
  collect    compute the result of a run again from its raw files
  nightly    run a suite within a budget, confirm suspicions, end with the gate
  bisect     the first commit or package version with which a case got worse
  store      results over time: import, export, prune, check
  history    a series night after night: segments, level, what it shows
  gate       compare a night with its levels; 4 when something got worse
  baseline   accept a level or a step with a reason, or list them
  bundle     write runs into one archive, without names and secrets
  verify     compute the figures of a bundle again from its raw files
  align      compare a run's training with a reference, layer by layer
  curves     compare loss curves of runs that share no weights
  diagnose   find the first step and tensor in which two frameworks differ
  preflight  measure nodes and their collectives, name one out of line
  site       try what a site's file says, and print what is missing
  references list references, promote a run to one, record its noise
  audit      compute published figures again from their own rows
  case       add a case: from a published config.json, and check it
  vendor     add a vendor's chips: create a folder, check it, record tools
  framework  bring a framework: create a folder that trains, check it
  image      images for --runtime docker: build, list, prune, export
  environment make a framework's environment ahead of a run
  wheels     fetch packages into a folder, for machines without network
  data       prepare a corpus from text, or check one
  export     write a case's initial weights in another tool's format

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted
"""

LIST = """\
List names, with one line about each. Without KIND: every kind but runs.

examples:
  run_benchmarks.py list
  run_benchmarks.py list chips      peaks in TFLOP/s, links in GB/s
  run_benchmarks.py list runs --runs DIR
"""

SHOW = """\
Show every value of a case, at full and at smoke scale. --vendor adds the free
fields after the vendor's tuning; --diff shows only what that tuning changes.

examples:
  run_benchmarks.py show llama3_8b
  run_benchmarks.py show gpt3_6.7B --scale smoke --json
  run_benchmarks.py show llama3_8b --vendor nvidia --diff
"""

REPORT = """\
Report results: one run in full, or several side by side.
RUN is a path, a run id, a part of an id, or `latest`. --html writes pages:
of the store, or of the named runs (docs/pages.md).

examples:
  run_benchmarks.py report latest
  run_benchmarks.py report RUN1 RUN2 --format markdown --output table.md
  run_benchmarks.py report latest --with-published
  run_benchmarks.py report RUN --withhold mfu,peak --bundle DIR
  run_benchmarks.py report --html site
"""

REVEAL = """\
Check values that a publisher reveals against the commitments of the table.

example:
  run_benchmarks.py reveal check DIR/commitments.json DIR.reveal.json
"""

REVEAL_CHECK = """\
Print for every cell whether the revealed value matches its commitment.
Exit code 4 when a value does not match.

example:
  run_benchmarks.py reveal check DIR/commitments.json DIR.reveal.json
"""

COLLECT = """\
Compute result.json and report.md of a run again from its raw files. The same
raw files give the same bytes.

examples:
  run_benchmarks.py collect latest
  run_benchmarks.py collect RUN --check
"""

STORE = """\
Keep results over time in a database. Every run is recorded unless --no-store.
The store is a file in your data folder; LEVELFIELD_STORE or --store names
another, or PostgreSQL. docs/store.md describes it.

examples:
  run_benchmarks.py store info
  run_benchmarks.py store import runs/
  run_benchmarks.py store export --format csv --case gpt3_6.7B
"""

STORE_IMPORT = """\
Add runs, folders of runs, bundles or exports (JSON lines) to the store. A run
that is there already changes nothing. A run of the same id with other content
is kept aside, and so is the one that was there; exit code 2 then names it.

examples:
  run_benchmarks.py store import latest
  run_benchmarks.py store import runs/ run.zip export.jsonl
"""

STORE_EXPORT = """\
Write the runs of the store.

  jsonl        everything; `store import` reads it
  csv          a row of figures for each run
  tensorboard  an event file for each run, below the folder --output
  mllog        lines of MLPerf's logging format; not a submission

examples:
  run_benchmarks.py store export --output results.jsonl
  run_benchmarks.py store export --format csv --case llama3_8b
  run_benchmarks.py store export --format tensorboard --output DIR
"""

STORE_PRUNE = """\
Remove runs from the store. A run that an accepted baseline or another event
names stays. The run directories are not touched.

examples:
  run_benchmarks.py store prune --keep-days 365 --dry-run
  run_benchmarks.py store prune --keep-days 90 --case gpt3_6.7B
  run_benchmarks.py store prune --run ID
"""

STORE_CHECK = """\
Check the database, and every row against its digest. Exit code 4 when something
is wrong.

example:
  run_benchmarks.py store check
"""

STORE_INFO = """\
Show where the store is, how large it is, and what it holds. An older store is
brought up to date.

example:
  run_benchmarks.py store info --json
"""

BASELINE = """\
Accept what a gate found. Until somebody accepts a level, the old one stays: a
regression fails every night, and after a gain that nobody accepted a fall to
the old level is not seen. Each event says who, when, why, and on which runs.

SERIES is a case with one series, a part of a label, or the start of a digest;
`history CASE` prints them.

examples:
  run_benchmarks.py baseline accept SERIES --why "flash kernels, merge 12"
  run_benchmarks.py baseline accept-step SERIES --why "driver 560 costs 6 %"
  run_benchmarks.py baseline list
"""

BASELINE_ACCEPT = """\
Accept the level of a series: of its unchanged nights, or of --run. A
run that is not valid, not sealed or of a bad night is no evidence. One night
is enough where a finished comparison by pairs judged it.

examples:
  run_benchmarks.py baseline accept SERIES --why "flash kernels, merge 12"
  run_benchmarks.py baseline accept SERIES --why "known" --until 2026-12-31
"""

BASELINE_STEP = """\
Accept the newest change of conditions of a series, such as of a driver. Then
the series has a new level, from the nights after it. With --everywhere the same
change is accepted in every series that has it.

examples:
  run_benchmarks.py baseline accept-step SERIES --why "driver 560 costs 6 %"
  run_benchmarks.py baseline accept-step SERIES --why "driver" --everywhere
"""

BASELINE_NOTE = """\
Add a remark to a series, for readers of its history. It changes no level.

example:
  run_benchmarks.py baseline note SERIES --why "the rack was moved"
"""

BASELINE_LIST = """\
List the events of all series, or of one: levels, steps, remarks, quarantines.

examples:
  run_benchmarks.py baseline list
  run_benchmarks.py baseline list SERIES --json
"""

ALIGN = """\
Compare a run's training with a reference, layer by layer. Exit code 4 unless
the verdict is `aligned` or `consistent`. `align calibrate` trains a case with
other arithmetic and records the noise in the reference; a run beyond the
present limits is not recorded (exit code 4), unless with --replace --why "...".

examples:
  run_benchmarks.py align latest
  run_benchmarks.py align RUN --reference OTHER_RUN
  run_benchmarks.py align calibrate gpt3_6.7B:torch
"""

DIAGNOSE = """\
Find the first step and tensor in which a run's framework differs from another.
Both train a few steps again, in one process each. The comparison covers every
block's output, every gradient and every updated parameter of a step.
Exit code 4 when something differs, else 0. RUN/diagnosis/ keeps the short runs.

examples:
  run_benchmarks.py diagnose latest
  run_benchmarks.py diagnose RUN --against megatron --step 5
"""

REFERENCES = """\
List and make references: the trainings that runs are compared with. They are
files in configs/references/.

examples:
  run_benchmarks.py references list
  run_benchmarks.py references promote RUN --why "first run on this host"
  run_benchmarks.py references noise NAME RUN1 RUN2
"""

REFERENCES_LIST = """\
List every reference with its origin and its number of noise rows.

example:
  run_benchmarks.py references list
"""

REFERENCES_PROMOTE = """\
Make a valid run the reference of its case. Exit code 4 when the run fails
against the present reference and --replace is not given.

example:
  run_benchmarks.py references promote RUN --why "first run on this host"
"""

REFERENCES_NOISE = """\
Record in a reference how far runs with other arithmetic are from it. The limits
of later comparisons come from these rows. Exit code 4 when a run is beyond the
present limits: its noise would widen them until it holds. --replace --why "..."
records it anyway, with the reason.

examples:
  run_benchmarks.py references noise NAME RUN1 RUN2
  run_benchmarks.py references noise NAME RUN --replace --why "new kernels"
"""

CASE = """\
Bring a case. docs/writing-a-case.md has every key.

examples:
  run_benchmarks.py case new my_llama --from config.json
  run_benchmarks.py case check my_llama
"""

CASE_NEW = """\
Write a case for a model by its config.json (gpt2, llama, mistral, qwen2, qwen3,
gemma, mixtral, qwen3_moe). A key that a case cannot say is refused by its name,
and nothing is written. The training is Levelfield's choice, to be replaced.

examples:
  run_benchmarks.py case new my_llama --from config.json --output DIR
  run_benchmarks.py case new my_llama --from config.json --parameters 8030261248
"""

CASE_CHECK = """\
Count a case's parameters, name what each framework refuses, and plan the smoke
scale on a processor and the full scale on --hardware. Nothing is run. Exit code
4 unless every check passes or does not apply.

examples:
  run_benchmarks.py case check my_llama --plugins DIR
  run_benchmarks.py case check my_llama --hardware "4x8 A100-SXM4-80GB"
"""

VENDOR = """\
Add a vendor's chips. docs/writing-a-vendor.md shows the steps.

examples:
  run_benchmarks.py vendor new acme
  run_benchmarks.py vendor check acme --fast
  run_benchmarks.py vendor record acme --redact
"""

VENDOR_NEW = """\
Write a folder for a vendor, with the places to fill in.

examples:
  run_benchmarks.py vendor new acme
  run_benchmarks.py vendor new acme --package --output DIR
"""

VENDOR_CHECK = """\
Check a vendor with the conformance suite. No chip is needed. Exit code 4 unless
every check passes, warns or does not apply.

examples:
  run_benchmarks.py vendor check acme
  run_benchmarks.py vendor check acme --fast --plugins DIR
"""

VENDOR_RECORD = """\
Run the vendor's tools and store their output as recordings. Run this on a
machine with the chip.

example:
  run_benchmarks.py vendor record acme --redact
"""

FRAMEWORK = """\
Bring a framework. docs/writing-a-framework.md shows the steps.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework check acme --plugins DIR --fast
"""

FRAMEWORK_CHECK = """\
Train the small models in every layout, precision and recomputation that the
manifest offers, and compare them with torch's curve. Plant faults, check
events, refusals and ends. Write tested.json. Exit code 4 unless all pass.

examples:
  run_benchmarks.py framework check acme --plugins DIR
  run_benchmarks.py framework check acme --fast --python PATH
"""

FRAMEWORK_NEW = """\
Write a folder for a framework: a whole training of GPT and Llama in numpy, with
the places to replace by the framework's own calls.

examples:
  run_benchmarks.py framework new acme
  run_benchmarks.py framework new acme DIR
  run_benchmarks.py framework new acme --package
"""

IMAGE = """\
Manage the images of --runtime docker. A run builds a missing image itself.

examples:
  run_benchmarks.py image build torch megatron --vendor nvidia
  run_benchmarks.py image list
  run_benchmarks.py image export torch --output torch.tar
"""

IMAGE_BUILD = """\
Build the images of frameworks. An image that exists is not built again.

example:
  run_benchmarks.py image build torch megatron --vendor nvidia
"""

IMAGE_SHOW = """\
Print the Dockerfile of a framework's image.

example:
  run_benchmarks.py image show torch --vendor nvidia
"""

IMAGE_LIST = """\
List Levelfield's images on the engine, with size (GiB) and creation time.

example:
  run_benchmarks.py image list --json
"""

IMAGE_PRUNE = """\
Remove old images and the remains of stopped builds. The newest image of each
framework and vendor stays.

examples:
  run_benchmarks.py image prune
  run_benchmarks.py image prune --all
"""

IMAGE_EXPORT = """\
Write an image, or its build context, to a tar file.

examples:
  run_benchmarks.py image export torch --output torch.tar
  run_benchmarks.py image export torch --context --output context.tar
"""

ENVIRONMENT = """\
Make the Python environments of frameworks in .venvs/, ahead of a run.

example:
  run_benchmarks.py environment make torch
"""

ENVIRONMENT_MAKE = """\
Make the environments of these frameworks, as a run makes them: from the pinned
packages, in .venvs/FRAMEWORK-VENDOR. What is whole already stays. The driver
is checked first, where the vendor's tool shows one; --any-driver leaves that
out. So a machine without devices gets what `plan --rehearse` needs. pip has to
take torch from an index with CUDA builds, as the public one has for Linux.

examples:
  run_benchmarks.py environment make torch deepspeed
  run_benchmarks.py environment make torch --vendor nvidia --any-driver
"""

WHEELS = """\
Fetch packages into a folder, for machines without network.

example:
  run_benchmarks.py wheels fetch DIR
"""

WHEELS_FETCH = """\
Download into DIR the wheels of Levelfield, of its tests and of the frameworks,
from the index that pip is configured for. With LEVELFIELD_WHEELS=DIR every
environment and image is then made from that folder alone, on a machine with
the same system and Python. --vendor chooses the kind of device.

examples:
  run_benchmarks.py wheels fetch DIR torch
  run_benchmarks.py wheels fetch DIR torch paddle --vendor nvidia
"""

DATA = """\
Prepare a corpus from text, or check one.

examples:
  run_benchmarks.py data prepare --input DIR --tokenizer bytes --output PREFIX
  run_benchmarks.py data check PREFIX
"""

DATA_PREPARE = """\
Convert text files to Megatron's indexed format: PREFIX.bin and PREFIX.idx.
Each file is a document, or with --field each line of it.

examples:
  run_benchmarks.py data prepare --input DIR --tokenizer bytes --output PREFIX
  run_benchmarks.py data prepare --input enwiki --field text \\
      --tokenizer tokenizer.json --output PREFIX
  run_benchmarks.py data prepare --input a.txt --tokenizer tokenizer.json \\
      --end-token "<|endoftext|>" --output PREFIX
"""

DATA_CHECK = """\
Read a whole corpus and print its format, size in tokens and digest.

example:
  run_benchmarks.py data check PREFIX
"""

EXPORT = """\
Write a case's initial weights in another tool's format.

example:
  run_benchmarks.py export llama3_8b --format hf --scale smoke --output DIR
"""

DESCRIPTIONS = {
    "run": RUN,
    "list": LIST,
    "show": SHOW,
    "report": REPORT,
    "reveal": REVEAL,
    "reveal check": REVEAL_CHECK,
    "collect": COLLECT,
    "store": STORE,
    "store import": STORE_IMPORT,
    "store export": STORE_EXPORT,
    "store prune": STORE_PRUNE,
    "store check": STORE_CHECK,
    "store info": STORE_INFO,
    "baseline": BASELINE,
    "baseline accept": BASELINE_ACCEPT,
    "baseline accept-step": BASELINE_STEP,
    "baseline note": BASELINE_NOTE,
    "baseline list": BASELINE_LIST,
    "align": ALIGN,
    "diagnose": DIAGNOSE,
    "references": REFERENCES,
    "references list": REFERENCES_LIST,
    "references promote": REFERENCES_PROMOTE,
    "references noise": REFERENCES_NOISE,
    "case": CASE,
    "case new": CASE_NEW,
    "case check": CASE_CHECK,
    "vendor": VENDOR,
    "vendor new": VENDOR_NEW,
    "vendor check": VENDOR_CHECK,
    "vendor record": VENDOR_RECORD,
    "framework": FRAMEWORK,
    "framework new": FRAMEWORK_NEW,
    "framework check": FRAMEWORK_CHECK,
    "image": IMAGE,
    "image build": IMAGE_BUILD,
    "image show": IMAGE_SHOW,
    "image list": IMAGE_LIST,
    "image prune": IMAGE_PRUNE,
    "image export": IMAGE_EXPORT,
    "environment": ENVIRONMENT,
    "environment make": ENVIRONMENT_MAKE,
    "wheels": WHEELS,
    "wheels fetch": WHEELS_FETCH,
    "data": DATA,
    "data prepare": DATA_PREPARE,
    "data check": DATA_CHECK,
    "export": EXPORT,
}
