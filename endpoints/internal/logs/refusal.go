package logs

// What to do about a server that refuses this user, or is not there.
const (
	RefusedRemedy = "for the private server of `tranche serve`, set NATS_URL=$(cat DIR/nats-url), where DIR is its " +
		"--data-dir; for another one, check NATS_URL and NATS_CREDS, NATS_NKEY or NATS_USER"
	AwayRemedy = "start `tranche serve`, or set NATS_URL to a server that runs; for the private server of " +
		"`tranche serve`, NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir"
)
