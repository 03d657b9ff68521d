package webhook

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/tranchehq/tranche/internal/connections"
)

// BadError says what is wrong with where a webhook is to go.
type BadError struct {
	Field string // url, secret; empty when it is both together
	Value string // fit to be repeated
	Why   string
}

func (e *BadError) Error() string { return e.Why }

// Check refuses a webhook that could not be sent.
func Check(conns *connections.Connections, address, secret string) error {
	u, err := CheckURL(address)
	if err != nil {
		return err
	}
	if secret == "" {
		return &BadError{Field: "secret", Why: "name a secret of the operator's file, which signs what is sent"}
	}
	if _, err := keyOf(conns, u, secret); err != nil {
		return &BadError{Value: address, Why: err.Error()}
	}
	return nil
}

// CheckURL reads the URL of a webhook. The error is a *BadError.
func CheckURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, &BadError{"url", address, "want a URL like https://api.bank.example/done"}
	case u.User != nil:
		return nil, &BadError{"url", u.Redacted(), "a password has no place in a URL; receivers check the signature"}
	case u.Fragment != "":
		return nil, &BadError{"url", address, "what stands behind # is never sent"}
	}
	return u, nil
}

var errNoConnections = errors.New("this node has no secrets (serve --connections FILE)")

// keyOf returns what signs a webhook to u. The operator's file decides by the hosts of the secret.
func keyOf(conns *connections.Connections, u *url.URL, secret string) ([]byte, error) {
	if conns == nil {
		return nil, errNoConnections
	}
	found, err := conns.Secret(secret)
	if err != nil {
		return nil, err
	}
	text, err := found.Value(u)
	if err != nil {
		return nil, errors.New(conns.Redact(err.Error()))
	}
	key, err := signingKey(text)
	if err != nil {
		return nil, fmt.Errorf("secret %q cannot sign webhooks: %w", secret, err)
	}
	return key, nil
}
