package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// Prefix is what the secret of every token begins with, so that scanners find those that lie around.
const Prefix = "tr_"

const (
	secretBytes = 20 // 160 random bits: 32 characters
	digits      = "abcdefghijklmnopqrstuvwxyz234567"
	sumDigits   = 7 // of 32 bits
	// SecretChars is the length of a secret, with its prefix.
	SecretChars = len(Prefix) + 32 + sumDigits
)

func base32Text(b []byte) string {
	return base32.NewEncoding(digits).WithPadding(base32.NoPadding).EncodeToString(b)
}

// NewSecret returns the secret of a new token: the prefix, 160 random bits, and a checksum, by which one that was cut
// off or mistyped is known without asking anybody.
func NewSecret() string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails: the program ends instead
	text := Prefix + base32Text(b)
	return text + checksum(text)
}

func checksum(text string) string {
	return base32Text(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}

// WellFormed reports whether a text can be the secret of a token.
func WellFormed(text string) bool {
	if len(text) != SecretChars || !strings.HasPrefix(text, Prefix) {
		return false
	}
	body := text[:SecretChars-sumDigits]
	return strings.Trim(body[len(Prefix):], digits) == "" && checksum(body) == text[len(body):]
}

// newCookie returns the secret of a web session.
func newCookie() string {
	b := make([]byte, sha256.Size)
	_, _ = rand.Read(b) // as above
	return base32Text(b)
}

// wellFormedCookie reports whether a text can be the secret of a web session.
func wellFormedCookie(text string) bool {
	return len(text) == base32.StdEncoding.WithPadding(base32.NoPadding).EncodedLen(sha256.Size) &&
		strings.Trim(text, digits) == ""
}

// HashOf is what is kept of a secret. It needs neither salt nor effort: nobody guesses 160 bits.
func HashOf(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// leastRedacted is how long a piece of a secret is that does not stay in a text.
const leastRedacted = 12

// Redact takes the secrets of tokens out of a text that will be shown or logged, also of those that were cut off.
func Redact(text string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, Prefix)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString(Prefix)
		rest := strings.TrimLeft(after, digits)
		if len(after)-len(rest) >= leastRedacted {
			out.WriteString("…")
			after = rest
		}
		text = after
	}
}
