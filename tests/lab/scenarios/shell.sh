# A prompt for people. /lab/lib.sh has guest_config, guest_create and the rest.
guest_config g1 ""
echo "g1 is ready to start: xl create /lab/g1.cfg; its console: tail -f $(guest_log g1)"
setsid sh -c 'exec sh -i </dev/hvc0 >/dev/hvc0 2>&1'
