package access

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
)

// What is sealed is for one purpose only.
const (
	sealAttempt = "tranche login attempt"
	sealRenewal = "tranche session renewal"
)

// sealer encrypts and authenticates what is kept elsewhere. All nodes that have the same secret have the same key;
// without one the key is the process's own.
type sealer struct{ aead cipher.AEAD }

func newSealer(secret string) (sealer, error) {
	key, err := hkdf.Key(sha256.New, []byte(cmp.Or(secret, rand.Text())), nil, "tranche oidc", 32)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	return sealer{aead}, nil
}

func (s sealer) seal(purpose string, plain []byte) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(purpose)) //nolint:gosec // nonces are random, and the cipher's own
}

// open returns what was sealed; false when it was not sealed by this key, for this purpose.
func (s sealer) open(purpose string, sealed []byte) ([]byte, bool) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return plain, err == nil
}
