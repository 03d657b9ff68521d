package logs

import (
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
)

// What to do about a server that refuses this user, or is not there.
const (
	RefusedRemedy = "for the private server of `tranche serve`, set NATS_URL=$(cat DIR/nats-url), where DIR is its " +
		"--data-dir; for another one, check NATS_URL and NATS_CREDS, NATS_NKEY or NATS_USER"
	AwayRemedy = "start `tranche serve`, or set NATS_URL to a server that runs; for the private server of " +
		"`tranche serve`, NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir"
)

// Refusal reports whether err is a NATS server's refusal of the user.
func Refusal(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}
