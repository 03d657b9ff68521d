package natsaccess

import (
	"fmt"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

// ConfName is the file of the server in the directory that is written.
const ConfName = "server.conf"

// WriteNkeys writes the server's file into a directory, and a file NAME.nk with a seed for each user. It returns the
// files, the server's first.
func (s *System) WriteNkeys(dir string) ([]string, error) {
	keys, err := KeysIn(dir)
	if err != nil {
		return nil, err
	}
	public := map[string]string{}
	files := []string{filepath.Join(dir, ConfName)}
	for _, a := range s.Accounts {
		pair, err := keys.pair(a.User.Name, nkeys.PrefixByteUser)
		if err != nil {
			return nil, err
		}
		if public[a.User.Name], err = pair.PublicKey(); err != nil {
			return nil, fmt.Errorf("key of %s: %w", a.User.Name, err)
		}
		files = append(files, filepath.Join(dir, a.User.Name+seedEnding))
	}
	return files, write(files[0], []byte(s.Conf(public)))
}
