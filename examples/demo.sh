#!/bin/sh
# Trains, reproduces and changes a small GPT, by commands that you can type.
# Usage: demo.sh [DIRECTORY [TEXT]]. DIRECTORY is new (default: m5ws-demo). TEXT is a file or a folder of texts.
set -eu

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

root=${1:-m5ws-demo}
if [ -e "$root" ]; then
    printf '%s exists: remove it, or name another folder: make demo ARGS=FOLDER\n' "$root" >&2
    exit 2
fi
text=${2:+$(realpath "$2")}

printf '# A project in git: a small GPT, real text, and a tokenizer trained on it.\n'
show m5ws -q init --template gpt-fsdp "$root"
show cd "$root"
show git init -q
show python prepare.py ${text:+"$text"}

printf '\n# Pin code, config, tokenizer, data and environment, and train from them on two processes: half a minute.\n'
show m5ws -q run --name demo --nproc 2

printf '\n# Train again, and compare every step and the whole state, bit for bit: half a minute.\n'
show m5ws -q reproduce demo

printf '\n# Train again with one number changed. The verdict names it, and the first step that differs.\n'
status=0
show m5ws -q reproduce demo --set learning_rate=0.002 || status=$?
test "$status" -eq 1 || exit 1

printf '\nTo see the runs in MLflow: %s -C %s ui\n' "$(command -v m5ws)" "$root"
