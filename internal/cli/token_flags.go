package cli

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/tranchehq/tranche/internal/access"
)

// TokenFlags are where a command has its token from.
type TokenFlags struct {
	Token     string `env:"TRANCHE_TOKEN" help:"The token to use. Others on this machine can see a command line: better a file." placeholder:"SECRET"`
	TokenFile string `env:"TRANCHE_TOKEN_FILE" help:"A file with the token to use, readable by you alone." placeholder:"FILE"`
}

// maxTokenFile bounds what is read for a token.
const maxTokenFile = 4096

// secret returns the token; empty when none was given.
func (f *TokenFlags) secret(term *Console) (string, error) {
	secret, from := f.Token, "--token (or TRANCHE_TOKEN)"
	if f.TokenFile != "" {
		if secret != "" {
			return "", &usageError{"--token (or TRANCHE_TOKEN) and --token-file (or TRANCHE_TOKEN_FILE) are both given; " +
				"leave one out"}
		}
		from = "--token-file " + f.TokenFile
		text, err := readTokenFile(f.TokenFile, term)
		if err != nil {
			return "", &usageError{"--token-file: " + err.Error()}
		}
		if secret = strings.TrimSpace(text); secret == "" {
			return "", &usageError{from + " is empty; it must hold a token, like " + access.Prefix + "…"}
		}
	}
	if secret != "" && !access.WellFormed(secret) {
		return "", &usageError{fmt.Sprintf("%s is not a token: one begins with %s and has %d characters; it may have been "+
			"cut off", from, access.Prefix, access.SecretChars)}
	}
	return secret, nil
}

func readTokenFile(name string, term *Console) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		term.Note("warning: %s can be read by others (mode %04o); keep it to yourself: chmod 600 %s", name,
			info.Mode().Perm(), ShellWord(name))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	return string(text), err
}

// warnOfPlainHTTP tells that a token is about to be sent so that others can read it.
func warnOfPlainHTTP(term *Console, server string) {
	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme != "http" || parsed.Hostname() == "localhost" {
		return
	}
	if ip := net.ParseIP(parsed.Hostname()); ip == nil || !ip.IsLoopback() {
		term.Note("warning: the token goes to %s unencrypted; use https", parsed.Host)
	}
}

// ShellWord is a text as a shell takes it for one word.
func ShellWord(text string) string {
	for _, r := range text {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !plain && r != '/' && r != '.' && r != '-' && r != '_' && r != ':' {
			return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
		}
	}
	if text == "" {
		return "''"
	}
	return text
}
