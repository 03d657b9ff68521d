package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Headers of a webhook, as https://www.standardwebhooks.com has them.
const (
	headerID        = "webhook-id"        // the same for each attempt
	headerTimestamp = "webhook-timestamp" // of the attempt, in seconds
	headerSignature = "webhook-signature" // "v1," and the signature, in base64
)

const (
	secretPrefix = "whsec_"
	leastSecret  = 24 // bytes
	mostSecret   = 64
)

var errSecretForm = errors.New("it must be whsec_ and 24 to 64 random bytes in base64; make one with: " +
	"echo whsec_$(openssl rand -base64 32)")

// signingKey reads a secret as the standard writes it.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < leastSecret || len(key) > mostSecret {
		return nil, errSecretForm
	}
	return key, nil
}

// sign signs an attempt at a webhook: HMAC-SHA256 over its id, its time and its body.
func sign(key []byte, id string, at time.Time, body []byte) (timestamp, signature string) {
	timestamp = strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return timestamp, "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
