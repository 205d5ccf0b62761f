# An HVM guest with Debian's kernel boots, sees its disk, and goes.
guest_config g1 ""
stage "xl create g1"
guest_create g1
stage "guest g1 boots"
guest_ready g1 300
stage "guest g1 powers off"
guest_start g1 poweroff
guest_gone g1 60
