package database

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	keySize   = 32 // AES-256
	nonceSize = 12
	tagSize   = 16
	// SealOverhead is the number of bytes that sealing adds to a value.
	SealOverhead = nonceSize + tagSize
	// sealMark begins sealed texts. No JSON begins like it.
	sealMark = "~"
)

// ReadKeys reads encryption keys, each 32 bytes in base64, from file:PATH, env:NAME or exec:PROGRAM ARGUMENTS.
func ReadKeys(ctx context.Context, sources []string) (keys [][]byte, err error) {
	for _, source := range sources {
		text, err := readKey(ctx, source)
		if err != nil {
			return nil, fmt.Errorf("encryption key %s: %w", source, err)
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("encryption key %s: want %d bytes in base64, as of: openssl rand -base64 %[2]d", source,
				keySize)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func readKey(ctx context.Context, source string) (string, error) {
	kind, from, _ := strings.Cut(source, ":")
	words := strings.Fields(from)
	switch {
	case kind == "file" && from != "":
		text, err := os.ReadFile(from)
		return string(text), err
	case kind == "env" && os.Getenv(from) != "":
		return os.Getenv(from), nil
	case kind == "env" && from != "":
		return "", errors.New("the variable is not set")
	case kind == "exec" && len(words) > 0:
		program := exec.CommandContext(ctx, words[0], words[1:]...)
		program.Stderr = os.Stderr
		text, err := program.Output()
		return string(text), err
	}
	return "", errors.New("want file:PATH, env:NAME or exec:PROGRAM ARGUMENTS")
}

// sealing is a database's encryption keys, and the data keys of runs.
type sealing struct {
	keys []cipher.AEAD // the first encrypts data keys; all are tried to decrypt one

	mu    sync.Mutex
	known map[workqueue.RunID]*Seal // nil: the run is not encrypted
}

// maxSeals bounds the data keys in memory.
const maxSeals = 4096

// SetKeys sets the encryption keys. Each new run gets its own data key, stored encrypted with the first of them; without
// keys new runs are not encrypted. All keys are tried to decrypt a data key.
func (s *DB) SetKeys(keys [][]byte) error {
	s.seals.keys = nil
	for _, key := range keys {
		aead, err := newAEAD(key)
		if err != nil {
			return fmt.Errorf("encryption key: %w", err)
		}
		s.seals.keys = append(s.seals.keys, aead)
	}
	return nil
}

// Keyed reports whether new runs are encrypted.
func (s *DB) Keyed() bool { return len(s.seals.keys) > 0 }

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (s *sealing) keep(run workqueue.RunID, seal *Seal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSeals {
		s.known = map[workqueue.RunID]*Seal{}
	}
	s.known[run] = seal
}

// NewDataKey makes the data key of a new run, to be stored as batchrun.data_key; nil: new runs are not encrypted.
func (s *DB) NewDataKey(run workqueue.RunID) ([]byte, error) {
	if !s.Keyed() {
		s.seals.keep(run, nil)
		return nil, nil
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	seal, err := newSeal(run, key)
	if err != nil {
		return nil, err
	}
	s.seals.keep(run, seal)
	return s.seals.wrap(run, key), nil
}

func (s *sealing) wrap(run workqueue.RunID, key []byte) []byte {
	nonce := make([]byte, nonceSize, keySize+SealOverhead)
	_, _ = rand.Read(nonce) // never fails
	return s.keys[0].Seal(nonce, nonce, key, run[:])
}

// unwrap returns a data key, and the index of the key that decrypted it.
func (s *sealing) unwrap(run workqueue.RunID, wrapped []byte) (key []byte, by int, err error) {
	for by, aead := range s.keys {
		if len(wrapped) < nonceSize {
			break
		}
		if key, err := aead.Open(nil, wrapped[:nonceSize], wrapped[nonceSize:], run[:]); err == nil {
			return key, by, nil
		}
	}
	return nil, 0, &workqueue.StateError{Run: run, State: "encrypted with a key that this process does not have",
		Op: "read or write", Fix: "give it that key, with --encryption-key"}
}

const dataKey = `SELECT data_key FROM batchrun WHERE id = $1`

// Seal returns how the values of a run are stored. The error wraps ErrNotFound if there is no such run, and is a
// *workqueue.StateError without its key.
func (s *DB) Seal(ctx context.Context, from pg.Querier, run workqueue.RunID) (*Seal, error) {
	s.seals.mu.Lock()
	seal, known := s.seals.known[run]
	s.seals.mu.Unlock()
	if known {
		return seal, nil
	}
	wrapped, err := pg.One(ctx, from, pgx.RowTo[[]byte], dataKey, run)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err == nil && wrapped != nil {
		var key []byte
		if key, _, err = s.seals.unwrap(run, wrapped); err == nil {
			seal, err = newSeal(run, key)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the data key of run %s: %w", run, err)
	}
	s.seals.keep(run, seal)
	return seal, nil
}

// SealOfMessage is Seal for the body of a message; nil if it names no run, or one that does not exist.
func (s *DB) SealOfMessage(ctx context.Context, run *workqueue.RunID) (*Seal, error) {
	if run == nil {
		return nil, nil
	}
	seal, err := s.Seal(ctx, s.Pool, *run)
	if errors.Is(err, workqueue.ErrNotFound) {
		return nil, nil
	}
	return seal, err
}

const (
	dataKeys = `SELECT id, data_key FROM batchrun WHERE data_key IS NOT NULL ORDER BY id`
	setKey   = `UPDATE batchrun SET data_key = $2 WHERE id = $1`
)

type runKey struct {
	Run     workqueue.RunID
	Wrapped []byte
}

// CheckKeys returns an error if there is a run that the keys do not decrypt.
func (s *DB) CheckKeys(ctx context.Context) error {
	all, err := pg.Collect(ctx, s.Sessions, pgx.RowToStructByPos[runKey], dataKeys)
	for i := range all {
		if err == nil {
			_, _, err = s.seals.unwrap(all[i].Run, all[i].Wrapped)
		}
	}
	if err != nil {
		return fmt.Errorf("check the encryption keys: %w", err)
	}
	return nil
}

// RotateKeys reencrypts with the first key, in one transaction, the data keys that are encrypted with another, and
// returns their number.
func (s *DB) RotateKeys(ctx context.Context) (runs int, err error) {
	if !s.Keyed() {
		return 0, errors.New("rotate keys: none is given")
	}
	err = s.InTxWithin(ctx, OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		all, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[runKey], dataKeys)
		batch := &pgx.Batch{}
		for _, of := range all {
			key, by, err := s.seals.unwrap(of.Run, of.Wrapped)
			if err != nil {
				return err
			}
			if by > 0 {
				batch.Queue(setKey, of.Run, s.seals.wrap(of.Run, key))
			}
		}
		if runs = batch.Len(); err != nil || runs == 0 {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("rotate keys: %w", err)
	}
	return runs, nil
}

// KeyFile returns the key stored, encrypted like data keys, in a file. It makes the file if there is none.
func (s *DB) KeyFile(path string) (key []byte, err error) {
	wrapped, err := os.ReadFile(path)
	key, by := make([]byte, keySize), -1
	if errors.Is(err, fs.ErrNotExist) {
		_, err = rand.Read(key)
	} else if err == nil {
		key, by, err = s.seals.unwrap(workqueue.RunID{}, wrapped)
	}
	if err != nil || by == 0 {
		return key, err
	}
	if err := os.WriteFile(path+".new", s.seals.wrap(workqueue.RunID{}, key), 0o600); err != nil {
		return nil, err
	}
	return key, os.Rename(path+".new", path)
}

// Seal encrypts the values of a run by AES-256-GCM, each bound to its place. The nonce follows from value and place,
// so that an unchanged value is stored unchanged and PostgreSQL can compare it. A nil Seal leaves values unchanged.
type Seal struct {
	run    workqueue.RunID
	aead   cipher.AEAD
	nonces sync.Pool // of hash.Hash: making one costs more than most values
}

func newSeal(run workqueue.RunID, key []byte) (*Seal, error) {
	values, err := hkdf.Expand(sha256.New, key, "values", keySize)
	if err != nil {
		return nil, err
	}
	nonce, err := hkdf.Expand(sha256.New, key, "nonces", keySize)
	if err != nil {
		return nil, err
	}
	aead, err := newAEAD(values)
	return &Seal{run, aead, sync.Pool{New: func() any { return hmac.New(sha256.New, nonce) }}}, err
}

// Place is what a sealed value belongs to within its run.
type Place []byte

// PayloadOf is the place of an item's payload, by its key.
func PayloadOf[T string | []byte](key T) Place { return append(Place{'p'}, key...) }

// ResultOf is the place of an item's result at a step.
func ResultOf(step workqueue.Step, item workqueue.Ordinal) Place {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(Place{'r'}, uint16(step)), uint32(item))
}

// PieceOf is the place of a piece of a large result.
func PieceOf(id uuid.UUID, number int) Place {
	return binary.BigEndian.AppendUint32(append(Place{'l'}, id[:]...), uint32(number))
}

// LetterOf is the place of a dead letter's body.
func LetterOf(id workqueue.LetterID) Place { return append(Place{'d'}, id[:]...) }

// InQuarantine is the place of the bodies of messages in quarantine.
func InQuarantine() Place { return Place{'q'} }

// Overhead returns the number of bytes that sealing adds to a value.
func (s *Seal) Overhead() int {
	if s == nil {
		return 0
	}
	return SealOverhead
}

// Bytes seals a value; nil stays nil.
func (s *Seal) Bytes(at Place, value []byte) []byte {
	if s == nil || value == nil {
		return value
	}
	mac, _ := s.nonces.Get().(hash.Hash)
	defer s.nonces.Put(mac)
	mac.Reset()
	_, _ = mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(at)))) // hashing cannot fail
	_, _ = mac.Write(at)
	_, _ = mac.Write(value)
	sealed := mac.Sum(make([]byte, 0, max(sha256.Size, len(value)+SealOverhead)))[:nonceSize]
	return s.aead.Seal(sealed, sealed, value, at)
}

// OpenBytes opens what Bytes sealed. Shorter values are what an erasure left.
func (s *Seal) OpenBytes(at Place, sealed []byte) ([]byte, error) {
	if s == nil || len(sealed) < SealOverhead {
		return sealed, nil
	}
	value, err := s.aead.Open([]byte{}, sealed[:nonceSize], sealed[nonceSize:], at)
	if err != nil {
		return nil, fmt.Errorf("a value of run %s cannot be decrypted: it was changed, or is another item's", s.run)
	}
	return value, nil
}

// StoredText returns the stored length of a text of a new run.
func (s *DB) StoredText(size int) int {
	if !s.Keyed() {
		return size
	}
	return len(sealMark) + base64.RawStdEncoding.EncodedLen(size+SealOverhead)
}

// Text is Bytes for a column of texts.
func (s *Seal) Text(at Place, value []byte) []byte {
	if s == nil || value == nil {
		return value
	}
	return base64.RawStdEncoding.AppendEncode([]byte(sealMark), s.Bytes(at, value))
}

// OpenText opens what Text sealed. A text without its mark is what an erasure left.
func (s *Seal) OpenText(at Place, text []byte) ([]byte, error) {
	sealed, marked := bytes.CutPrefix(text, []byte(sealMark))
	if s == nil || !marked {
		return text, nil
	}
	value, err := base64.RawStdEncoding.AppendDecode(nil, sealed)
	if err != nil || len(value) < SealOverhead {
		return nil, fmt.Errorf("a value of run %s is damaged: it is no base64", s.run)
	}
	return s.OpenBytes(at, value)
}
