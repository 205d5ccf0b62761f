# A guest whose GPU is at work, every result checked, is saved and restored,
# migrated to this same host again and again, and stopped half-way. Beside it
# the same guest without a vGPU, for what a migration costs anyway.

boot_limit=300
[ "$LAB_SHORT" = 1 ] && rounds=2 || rounds=10
[ "$LAB_SHORT" = 1 ] && plain_rounds=1 || plain_rounds=4
. /lab/faults.sh
# Requests are short: a driver that is suspended gives its GPU half a second to
# become idle.
work="--engine all --passes 2 --buffers 2 --contexts 2 --cells 64"
receiver="exec xl migrate-receive"

# The guest's console goes on in one file, though the domain is called
# NAME--incoming while it comes.
for name in g1 plain late; do
    ln -sf "guest-$name.log" "/var/log/xen/console/guest-$name--incoming.log"
done

# here NAME: notes the domain it is now.
here() { xl domid "$1" >"/run/domid-$1" 2>/dev/null; }

# status NAME TAG: how vgpud sees its migration.
status() {
    [ "$LAB_DEVICE" = 1 ] && [ "$1" = g1 ] || return 0
    timeout 30 vgpuctl migrate-status "$(cat "/run/domid-$1")" --json >"/results/status-$2.json" 2>&1
    block "status/$2" "/results/status-$2.json"
}

# alive NAME TAG: the guest runs, wherever it is, and how long it stood still.
alive() {
    here "$1"
    guest_do "$1" 120 gap max "$2"
    status "$1" "$2"
}

# migrate NAME TAG [RECEIVER]
migrate() {
    name=$1
    stage "xl migrate $1: $2"
    start=$(uptime_now)
    timeout 240 xl migrate -s '' "$1" "${3:-$receiver}" >"/results/xl-migrate-$2.txt" 2>&1
    fact "migrate-exit/$2" $?
    fact "migrate-seconds/$2" "$(since "$start")"
    alive "$1" "$2"
}

# save_restore NAME TAG
save_restore() {
    stage "xl save $1"
    start=$(uptime_now)
    timeout 240 xl save "$1" "/tmp/$1.save" >"/results/xl-save-$2.txt" 2>&1
    fact "save-exit/$2" $?
    fact "save-seconds/$2" "$(since "$start")"
    stage "xl restore $1"
    start=$(uptime_now)
    timeout 240 xl restore "/tmp/$1.save" >"/results/xl-restore-$2.txt" 2>&1
    fact "restore-exit/$2" $?
    fact "restore-seconds/$2" "$(since "$start")"
    # Of its device models' state, for a file of a former attempt.
    tail -c 400000 "/tmp/$1.save" >/run/former-state
    rm -f "/tmp/$1.save"
    alive "$1" "$2"
}

guest_config plain ""
guest_config late ""
# Linux loses MSIs when it is restored on a machine like this (docs/migration.md).
guest_config g1 "" "$(vgpu_line msi=off)"

# Which ways to fail, and whether they are all that is run.
faults="limit xl-stop"
[ "$LAB_SHORT" = 1 ] || faults="begin stop save load start limit killed no-vgpud gpu aperture
    forgotten
    xl-begin xl-stop xl-save xl-killed debug balloon stale away damaged"
if [ -n "$LAB_ONLY" ]; then
    faults=$(echo "$LAB_ONLY" | tr , ' ')
    rounds=0
    plain_rounds=0
fi
# The guest does not come back from this one.
last=$(echo " $faults " | grep -o ' qemu ')
[ "$LAB_SHORT" = 1 ] || [ -n "$LAB_ONLY" ] || last=qemu
fact only "$LAB_ONLY"

# without_vgpu NAME FIRST LAST: what a migration costs anyway.
without_vgpu() {
    stage "xl create $1, without a vGPU"
    guest_create "$1"
    guest_ready "$1" $boot_limit
    guest_do "$1" 30 gap start
    round=$2
    while [ "$round" -le "$3" ]; do
        migrate "$1" "plain-$round"
        round=$((round + 1))
    done
    guest_start "$1" poweroff
    guest_gone "$1" 60
}
# Half of it here and half at the end, as what else this machine does may change.
early=$(((plain_rounds + 1) / 2))
[ $early = 0 ] || without_vgpu plain 1 $early

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud
stage "xl create g1"
guest_create g1
stage "guest g1 boots"
guest_ready g1 $boot_limit
stage "g1: i915 is loaded"
guest_do g1 300 i915 bind
stage "g1 works"
guest_do g1 30 gap start
# shellcheck disable=SC2086 # the options are words
guest_do g1 60 work start migrate $work
guest_wait g1 '^LAB work/migrate .*"verified":[1-9]' 120 "first verified buffer"

[ -n "$LAB_ONLY" ] || save_restore g1 save
round=0
while [ $round -lt $rounds ]; do
    round=$((round + 1))
    migrate g1 "round-$round"
done

# to_kind TAG KEY=VALUE: to a device model of the other kind.
to_kind() {
    stage "xl migrate g1: $1"
    sed '/^vgpu/d' /lab/g1.cfg >"/lab/g1-$1.cfg"
    vgpu_line "$2,msi=off" >>"/lab/g1-$1.cfg"
    timeout 240 xl migrate -s '' -C "/lab/g1-$1.cfg" g1 "$receiver" >"/results/xl-migrate-$1.txt" 2>&1
    fact "migrate-exit/$1" $?
    alive g1 "$1"
    ask "place/$1" list --json
}
if [ "$LAB_STUB" = 1 ]; then
    fact stub yes
    to_kind to-process stub=0
    to_kind to-stub stub=1
fi

if [ "$LAB_DEVICE" = 1 ]; then
    for name in $faults; do
        [ "$name" = qemu ] || fault "$name"
    done
fi
stage "g1 once more, after all that"
migrate g1 "after-aborts"

stage "g1 stops"
guest_do g1 60 work stop migrate
guest_wait g1 '^LAB work-exit/migrate ' 120 "end of gpu-work"
guest_do g1 120 i915 complaints

if [ -n "$last" ] && [ "$LAB_DEVICE" = 1 ]; then
    fault qemu
    xl destroy g1
else
    stage "g1 goes"
    guest_start g1 poweroff
fi
guest_gone g1 60
[ $early -ge $plain_rounds ] || without_vgpu late $((early + 1)) $plain_rounds
daemons_end
[ "$LAB_STUB" = 1 ] && stubs_end
:
