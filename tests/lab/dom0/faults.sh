# What can go wrong with a migration of g1, for the scenario migrate. Each case is
# a function fault_NAME; afterwards g1 has to run, once, wherever it is. What is
# expected of each stands in tools/lab/src/check/migrate/faults.rs.

# Where a second vgpud listens.
other=/run/vgpud-other.sock

g1_domid() { cat /run/domid-g1; }

# g1_status: one line of vgpud's.
g1_status() { timeout 20 vgpuctl migrate-status "$(g1_domid)" 2>&1; }

# when_copying COMMAND...: when vgpud has looked at pages a few times.
when_copying() {
    tries=0
    until g1_status | grep -q '^copying, [0-9]*[3-9] looks' || [ $tries -gt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    fact "met-at/$fault" "$(g1_status)"
    "$@"
}

# settled COUNT: until there are so many domains, domain 0 among them, and device
# models' not.
settled() {
    tries=0
    while [ "$(count_domains)" != "$1" ] && [ $tries -lt 60 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    count_domains
}
count_domains() {
    for id in $(xenstore-list /local/domain); do
        xenstore-read "/local/domain/$id/name" 2>/dev/null || echo unnamed
    done | grep -vc '^vgpu-dm-'
}

# said TAG: what the target's device model and QEMU said. xl's words are there.
said() {
    block "xl/$1" "/results/xl-migrate-$1.txt"
    log=/var/log/xen/qemu-dm-g1--incoming.log
    [ -f "$log" ] || log=/var/log/xen/qemu-dm-g1.log
    cp "$log" "/results/dm-log-$1.txt" 2>/dev/null && block "dm-log/$1" "/results/dm-log-$1.txt"
}

# attempt [RECEIVER [OPTION...]]: xl migrate.
attempt() {
    rm -f /var/log/xen/qemu-dm-g1--incoming.log
    to=${1:-$receiver}
    [ $# -gt 0 ] && shift
    migrate_start=$(uptime_now)
    timeout --foreground 240 xl migrate -s '' "$@" g1 "$to" >"/results/xl-migrate-$fault.txt" 2>&1
    fact "migrate-exit/$fault" $?
    fact "migrate-seconds/$fault" "$(since "$migrate_start")"
}

# resume_g1: what an administrator does with a guest that stands still because
# its toolstack died: QEMU and the vGPU go on, then the guest does.
resume_g1() {
    # It complains that the domain is not paused, when it has told QEMU.
    timeout 30 xl unpause g1 >"/results/xl-unpause-$fault.txt" 2>&1
    python3 - "$(g1_domid)" >"/results/resume-$fault.txt" 2>&1 <<'RESUME'
import sys
sys.path.insert(0, "/usr/lib/xen-4.17/lib/python")
from xen.lowlevel import xc, xs
domid = int(sys.argv[1])
xc.xc().domain_resume(domid, 1)
xs.xs().resume_domain(domid)
RESUME
    fact "resume-exit/$fault" $?
}

# At a step that vgpud refuses.
fault_begin() { vgpuctl migrate-fail "$(g1_domid)" begin && attempt; }
fault_stop() { vgpuctl migrate-fail "$(g1_domid)" stop && attempt; }
fault_save() { vgpuctl migrate-fail "$(g1_domid)" save && attempt; }
fault_load() { vgpuctl migrate-fail 0 load && attempt; }
fault_start() { vgpuctl migrate-fail 0 start && attempt; }

# xl is killed there.
fault_xl_begin() { vgpuctl migrate-fail "$(g1_domid)" begin --kill && attempt; }
fault_xl_stop() {
    vgpuctl migrate-fail "$(g1_domid)" stop --kill && attempt
    resume_g1
}
fault_xl_save() {
    vgpuctl migrate-fail "$(g1_domid)" save --kill && attempt
    resume_g1
}

# Or anywhere while it sends.
fault_xl_killed() {
    attempt &
    when_copying kill -KILL "$(pidof_migrate)"
    wait $!
}

# pidof_migrate: xl at the source, when it is there.
pidof_migrate() {
    tries=0
    until pgrep -f '^[^ ]*xl migrate -s' || [ $tries -gt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
}

# The other side.
fault_killed() {
    attempt "exec timeout -s KILL 8 xl migrate-receive"
    # Nobody else removes it.
    xl destroy g1--incoming >/dev/null 2>&1
}
fault_no_vgpud() { attempt "VGPU_SOCKET=/nowhere exec xl migrate-receive"; }

# other_vgpud GPU: a second one, as of another host.
other_vgpud() {
    vgpud --gpu "$1" --socket "$other" --state-dir /var/lib/vgpu-other \
        --run-dir /run/vgpu-other >>/results/vgpud-other.log 2>&1 &
    other_pid=$!
    tries=0
    until timeout 5 vgpuctl list --socket "$other" >/dev/null 2>&1 || [ $tries -gt 100 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
}
other_vgpud_ends() {
    kill "$other_pid"
    wait "$other_pid"
}

fault_gpu() {
    [ "$LAB_GPU" = kbl ] && other_vgpud bdw || other_vgpud kbl
    attempt "VGPU_SOCKET=$other exec xl migrate-receive"
    other_vgpud_ends
}

# other_config NAME [LINE...]: g1's without its vGPU, with these lines.
other_config() {
    file="/lab/g1-$1.cfg"
    shift
    sed '/^vgpu/d; /^device_model_args_hvm/d' /lab/g1.cfg >"$file"
    for line in "$@"; do echo "$line"; done >>"$file"
}

# Its BAR would be another.
fault_aperture() {
    args=$(sed -n 's/^device_model_args_hvm = \[\(.*\)\]/\1, /p' /lab/g1.cfg)
    spec=$(vgpu_line aperture=128,msi=off | sed 's/.*\["//; s/"\].*//')
    other_config aperture 'device_model_override = "/opt/vgpu/bin/vgpu-launcher"' \
        'device_model_version = "qemu-xen"' "device_model_args_hvm = [$args\"-vgpu\", \"$spec\"]"
    attempt "$receiver" -C /lab/g1-aperture.cfg
}

# A configuration that knows of no vGPU: none of ours is asked at the target.
fault_forgotten() {
    args=$(grep '^device_model_args_hvm' /lab/g1.cfg)
    other_config forgotten "$args"
    attempt "$receiver" -C /lab/g1-forgotten.cfg
}

# To another vgpud and back.
fault_away() {
    other_vgpud "$LAB_GPU"
    attempt "VGPU_SOCKET=$other exec xl migrate-receive"
    here g1
    guest_do g1 120 gap max abort-away-there
    timeout 20 vgpuctl inspect "$(g1_domid)" --socket "$other" >/dev/null 2>&1
    fact "away-status/$fault" $?
    attempt
    other_vgpud_ends
}

# It would stand still for too long.
fault_limit() {
    vgpuctl migrate-limit "$(g1_domid)" 1
    attempt
    vgpuctl migrate-limit "$(g1_domid)" 500
}

# What succeeds though it is made hard.
fault_debug() {
    attempt "$receiver" --debug
    fact "verify-failed/$fault" "$(grep -c 'verify pfn' "/results/xl-migrate-$fault.txt")"
}
fault_balloon() {
    attempt &
    when_copying xl mem-set g1 448m
    wait $!
    here g1
    xl mem-set g1 512m
}
# A file of a former attempt, longer than the new one, with a vGPU in it.
fault_stale() {
    [ -f /run/former-state ] || head -c 400000 /dev/urandom >/run/former-state
    old="/var/lib/xen/qemu-save.$(g1_domid)"
    { cat "/run/former-state" && head -c 2000000 /dev/urandom && cat "/run/former-state"; } >"$old"
    attempt
}

# restore_fails CASE FILE: a file that is no good. The guest is nowhere then.
restore_fails() {
    stage "xl restore: $1"
    rm -f /var/log/xen/qemu-dm-g1--incoming.log /var/log/xen/qemu-dm-g1.log
    timeout --foreground 240 xl restore "$2" >"/results/xl-migrate-abort-$1.txt" 2>&1
    fact "restore-exit/abort-$1" $?
    fact "domains/abort-$1" "$(settled 1)"
    said "abort-$1"
}

# flip FILE OFFSET: a bit, and with the same again back.
flip() {
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\$(printf %o $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# A saved guest whose file is damaged in four ways, and then is not.
fault_damaged() {
    file=/tmp/g1-damaged.save
    timeout 240 xl save g1 "$file" >/results/xl-save-damaged.txt 2>&1
    fact "save-exit/$fault" $?
    # The last one: the guest's memory may hold pages of a file like this.
    at=$(grep -abo 'XENVGPU' "$file" | tail -n 1 | cut -d: -f1)
    fact "vgpu-at/$fault" "$at of $(stat -c %s "$file")"
    # To look at, with the toolstack's end of the file behind it.
    tail -c +$((at + 1)) "$file" >/results/vgpu-saved.bin
    mkfifo /run/cut
    head -c $((at / 2)) "$file" >/run/cut &
    restore_fails cut-memory /run/cut
    head -c $((at + 1500)) "$file" >/run/cut &
    restore_fails cut-state /run/cut
    rm /run/cut
    flip "$file" $((at + 1500))
    restore_fails flipped "$file"
    flip "$file" $((at + 1500))
    # QEMU's bytes are others than those the vGPU was saved behind.
    flip "$file" $((at - 2000))
    restore_fails former "$file"
    flip "$file" $((at - 2000))
    stage "xl restore: as it was"
    timeout 240 xl restore "$file" >"/results/xl-migrate-$fault.txt" 2>&1
    fact "migrate-exit/$fault" $?
    rm "$file"
}

# QEMU dies while memory is sent. The guest has lost its emulated devices then,
# with us or without, but not its toolstack.
fault_qemu() {
    attempt &
    when_copying kill -KILL "$(xenstore-read "/local/domain/$(g1_domid)/image/device-model-pid")"
    wait $!
}

# fault NAME: runs a case and notes how g1 is afterwards.
fault() {
    fault="abort-$1"
    stage "fault: $1"
    rm -f "/results/xl-migrate-$fault.txt"
    "fault_$(echo "$1" | tr - _)"
    fact "domains/$fault" "$(settled 2)"
    said "$fault"
    [ "$1" = qemu ] || alive g1 "$fault"
}
