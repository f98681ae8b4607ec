#!/usr/bin/env bash
# Every run of the wrappers into one store, then the report. Stop it as you like; run it again to go on.
# STORE=DIR names the store, since the report must read the same one.
set -e
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
STORE="${STORE:-runs}"
case " $* " in *" --store"*) echo "Name the store as STORE=DIR bash reproduce/run_all.sh." >&2; exit 2 ;; esac
"$PYTHON" reproduce/train_methods.py --store "$STORE" "$@"
"$PYTHON" reproduce/frozen_baseline.py --store "$STORE" "$@"
"$PYTHON" reproduce/penalty_sweep.py --store "$STORE" "$@"
case " $* " in *" --dry-run "*) exit 0 ;; esac
"$(dirname "$PYTHON")/walkback" report "$STORE" --out report
