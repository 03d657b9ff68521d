package embedded

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// natsUser is the only user of a server that has one.
const natsUser = "tranche"

// readPassword returns the password in a file of [NATSConfig.URLFile], or a new one when there is none.
func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return rand.Text(), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the password for NATS: %w", err)
	}
	if at, err := url.Parse(strings.TrimSpace(string(text))); err == nil && at.User != nil {
		if password, given := at.User.Password(); given && at.User.Username() == natsUser && password != "" {
			return password, nil
		}
	}
	return rand.Text(), nil
}

// writeURL writes where the server is and the password for it, for its owner alone.
func writeURL(file, at, password string) error {
	address, err := url.Parse(at)
	if err != nil {
		return fmt.Errorf("write the address of NATS: %w", err)
	}
	address.User = url.UserPassword(natsUser, password)
	draft, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // only its owner can open it
	if err != nil {
		return fmt.Errorf("write the address of NATS: %w", err)
	}
	_, err = draft.WriteString(address.String() + "\n")
	if err = errors.Join(err, draft.Close()); err == nil {
		err = os.Rename(draft.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the address of NATS: %w", err), os.Remove(draft.Name()))
	}
	return nil
}
