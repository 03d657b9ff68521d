package natsaccess

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

// seedEnding is what files of seeds are called behind the names of their owners.
const seedEnding = ".nk"

// Keys are the nkeys of a system, kept in a directory as seeds. What is there stays as it is, so that whoever has one
// keeps it when others are added.
type Keys struct{ dir string }

// KeysIn returns the keys of a directory, which is made for its owner alone when there is none.
func KeysIn(dir string) (*Keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of keys: %w", err)
	}
	return &Keys{dir: dir}, nil
}

// pair returns the key of a name, which make makes when there is none.
func (k *Keys) pair(name string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	file := filepath.Join(k.dir, name+seedEnding)
	seed, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k.make(file, prefix)
	}
	if err != nil {
		return nil, fmt.Errorf("read key of %s: %w", name, err)
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err == nil {
		if kind, _, decoding := nkeys.DecodeSeed(bytes.TrimSpace(seed)); decoding != nil || kind != prefix {
			err = errors.New("it is a key of another kind")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read key of %s in %s: %w", name, file, err)
	}
	return pair, nil
}

// make makes a key and writes it for its owner alone.
func (k *Keys) make(file string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	pair, err := nkeys.CreatePair(prefix)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return pair, write(file, append(seed, '\n'))
}

// write writes a file for its owner alone, whatever was there.
func write(file string, content []byte) error {
	temporary := file + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Chmod(temporary, 0o600); err != nil { // it may have been there
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
