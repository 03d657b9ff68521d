package logs

import (
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
)

// Refusal reports whether err is a NATS server's refusal of the user.
func Refusal(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}
