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
	"encoding/hex"
	"encoding/json"
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
	for i, source := range sources { // errors do not quote it: it may be the key itself
		text, err := readKey(ctx, source)
		if err != nil {
			return nil, fmt.Errorf("encryption key %d: %w", i+1, err)
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("encryption key %d: want %d bytes in base64, as of: openssl rand -base64 %[2]d", i+1,
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
	keys   []cipher.AEAD // the first encrypts data keys; all are tried to decrypt one
	prints []string

	mu    sync.Mutex
	known map[workqueue.RunID]*Seal // nil: the run is not encrypted
}

// maxSeals bounds the data keys in memory.
const maxSeals = 4096

// SetKeys sets the encryption keys. Each new run gets its own data key, stored encrypted with the first of them;
// without keys new runs are not encrypted. All keys are tried to decrypt a data key.
func (s *DB) SetKeys(keys [][]byte) error {
	s.seals.keys, s.seals.prints = nil, []string{}
	for _, key := range keys {
		if len(key) != keySize {
			return fmt.Errorf("encryption key of %d bytes; want %d", len(key), keySize)
		}
		aead, err := newAEAD(key)
		if err != nil {
			return fmt.Errorf("encryption key: %w", err)
		}
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte("fingerprint")) // hashing cannot fail
		s.seals.keys = append(s.seals.keys, aead)
		s.seals.prints = append(s.seals.prints, hex.EncodeToString(mac.Sum(nil)[:8]))
	}
	return nil
}

// Fingerprints tells keys apart, in their order, without revealing them.
func (s *DB) Fingerprints() []string { return append([]string{}, s.seals.prints...) }

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

// NewDataKey makes the data key of a new run, to be stored as batchrun.data_key, and its seal; nil: new runs are not
// encrypted.
func (s *DB) NewDataKey(run workqueue.RunID) ([]byte, *Seal, error) {
	if !s.Keyed() {
		s.seals.keep(run, nil)
		return nil, nil, nil
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	seal, err := newSeal(run, key)
	if err != nil {
		return nil, nil, err
	}
	s.seals.keep(run, seal)
	return s.seals.wrap(run, key), seal, nil
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
	return nil, 0, withoutKey([]workqueue.RunID{run})
}

// withoutKey is about runs, at least one, whose data keys no key decrypts.
func withoutKey(runs []workqueue.RunID) error {
	state, ids := "encrypted with a key that this process does not have", runs[0].String()
	if len(runs) > 1 {
		state += fmt.Sprintf(", like %d more", len(runs)-1)
	}
	for _, run := range runs[1:min(len(runs), maxNamed)] {
		ids += "," + run.String()
	}
	return &workqueue.StateError{Run: runs[0], State: state, Op: "read or write", Fix: "another node may have that " +
		"key: give it to this one, too, with --encryption-key; if it is lost, or batchrun.data_key was changed, cancel the " +
		"run: tranche run cancel " + runs[0].String() + ", or, if no node runs, tranche serve --cancel-run " + ids}
}

// maxNamed bounds the runs that an error names.
const maxNamed = 100

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

// ErrRunGone is about a message of a deleted run: its key is gone, too.
var ErrRunGone = errors.New("its run was deleted")

// Unreadable reports whether an error means that the keys do not open a value, or that its run was deleted.
func Unreadable(err error) bool {
	_, noKey := errors.AsType[*workqueue.StateError](err)
	return noKey || errors.Is(err, ErrDamaged) || errors.Is(err, ErrRunGone) || errors.Is(err, workqueue.ErrNotFound)
}

const runOfMessage = `
SELECT EXISTS (SELECT FROM batchrun WHERE id = $1), EXISTS (SELECT FROM deleted_run WHERE run_id = $1)`

// SealOfMessage is Seal for the body of a message that may say no run, or one that never was. The error wraps
// ErrRunGone if the run was deleted.
func (s *DB) SealOfMessage(ctx context.Context, run *workqueue.RunID) (*Seal, error) {
	if run == nil {
		return nil, nil
	}
	var there, gone bool
	if err := s.Pool.QueryRow(ctx, runOfMessage, *run).Scan(&there, &gone); err != nil {
		return nil, err
	}
	switch {
	case there:
		return s.Seal(ctx, s.Pool, *run)
	case gone:
		return nil, ErrRunGone
	}
	return nil, nil
}

const (
	dataKeys = `
SELECT id, data_key FROM batchrun WHERE data_key IS NOT NULL AND ($1 OR state IN ('loading', 'running')) ORDER BY id`

	setKey = `UPDATE batchrun SET data_key = $2 WHERE id = $1 AND data_key = $3`
)

type runKey struct {
	Run     workqueue.RunID
	Wrapped []byte
}

// CheckKeys returns an error with the runs in progress that no key decrypts, if any. It holds one data key at a time.
func (s *DB) CheckKeys(ctx context.Context) error {
	var of runKey
	var lost []workqueue.RunID
	_, err := pgx.ForEachRow(pg.Rows(ctx, s.Sessions, dataKeys, false), []any{&of.Run, &of.Wrapped}, func() error {
		if _, _, err := s.seals.unwrap(of.Run, of.Wrapped); err != nil {
			lost = append(lost, of.Run)
		}
		return nil
	})
	if err == nil && len(lost) > 0 {
		err = withoutKey(lost)
	}
	if err != nil {
		return fmt.Errorf("check the encryption keys: %w", err)
	}
	return nil
}

const (
	aliveNode = `
SELECT format('%s (pid %s)', host, pid) FROM node_session
WHERE ended_at IS NULL AND expires_at > tranche_now() AND NOT `

	nodeWithout = aliveNode + `$1 = ANY (keys) LIMIT 1`
	nodeWith    = aliveNode + `keys <@ $1 LIMIT 1`
)

// CheckLost returns an error while a node is alive with a key that this process lacks: that key is not lost.
func (s *DB) CheckLost(ctx context.Context) error {
	node, err := pg.One(ctx, s.Pool, pgx.RowTo[string], nodeWith, s.Fingerprints())
	if err == nil {
		return fmt.Errorf("node %s runs with a key that this process lacks: give it to this one, too, with "+
			"--encryption-key, or cancel there: tranche run cancel", node)
	}
	return pg.NoRow(err, nil)
}

// CheckNodes fails while a node is alive without the first key: an encrypted run must not begin or continue (op) then.
func (s *DB) CheckNodes(ctx context.Context, tx pgx.Tx, run workqueue.RunID, op string) error {
	node, err := pg.One(ctx, tx, pgx.RowTo[string], nodeWithout, append(s.Fingerprints(), "")[0])
	if err == nil {
		return &workqueue.StateError{Run: run, State: "encrypted, and node " + node + " has another key, or none", Op: op,
			Fix: "start that node with the same --encryption-key, and try again"}
	}
	return pg.NoRow(err, nil)
}

// SealAgain is Seal for a run that continues (op). It fails as CheckNodes does: no node starts while a run in
// progress has a key that it lacks.
func (s *DB) SealAgain(ctx context.Context, tx pgx.Tx, run workqueue.RunID, op string) (*Seal, error) {
	seal, err := s.Seal(ctx, tx, run)
	if seal != nil {
		err = s.CheckNodes(ctx, tx, run, op)
	}
	return seal, err
}

// RotateKeys encrypts with the first key the data keys that another one encrypts, and returns their number, and that of
// runs that no key decrypts. It is refused while a node is alive without the first key.
func (s *DB) RotateKeys(ctx context.Context) (runs, lost int, err error) {
	if !s.Keyed() {
		return 0, 0, errors.New("rotate keys: none is given")
	}
	node, err := pg.One(ctx, s.Pool, pgx.RowTo[string], nodeWithout, s.seals.prints[0])
	if err == nil {
		err = fmt.Errorf("node %s does not have the first one; give it to all nodes first, as the last one", node)
	}
	if err = pg.NoRow(err, nil); err != nil {
		return 0, 0, fmt.Errorf("rotate keys: %w", err)
	}
	all, err := pg.Collect(ctx, s.Pool, pgx.RowToStructByPos[runKey], dataKeys, true)
	for _, of := range all {
		key, by, unknown := s.seals.unwrap(of.Run, of.Wrapped)
		switch {
		case unknown != nil:
			lost++
		case by > 0 && err == nil:
			_, err = s.Pool.Exec(ctx, setKey, of.Run, s.seals.wrap(of.Run, key), of.Wrapped)
			runs++
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("rotate keys: %w", err)
	}
	return runs, lost, nil
}

// KeyFile returns the key in a file, which is encrypted like data keys, and created if missing. One process at a
// time may call it.
func (s *DB) KeyFile(path string) (key []byte, err error) {
	wrapped, err := os.ReadFile(path)
	key, by := make([]byte, keySize), -1
	if errors.Is(err, fs.ErrNotExist) {
		_, err = rand.Read(key)
	} else if err == nil {
		if key, by, err = s.seals.unwrap(workqueue.RunID{}, wrapped); err != nil {
			err = fmt.Errorf("%s is encrypted with another key: give that key, too, or, if it is lost, delete the file and "+
				"the directory nats next to it", path)
		}
	}
	if err != nil || by == 0 {
		return key, err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(s.seals.wrap(workqueue.RunID{}, key))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
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

// paramsPlace is the place of the run's parameters.
const paramsPlace = "v"

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

// ErrDamaged is wrapped by each error about a value that cannot be decrypted by the key of its run.
var ErrDamaged = errors.New("it was changed, or moved here from elsewhere")

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

// OpenBytes opens what Bytes sealed, and leaves what an erasure left.
func (s *Seal) OpenBytes(at Place, sealed []byte) (value []byte, err error) {
	if s == nil || erased(sealed) {
		return sealed, nil
	}
	if len(sealed) >= SealOverhead {
		value, err = s.aead.Open([]byte{}, sealed[:nonceSize], sealed[nonceSize:], at)
	}
	if err != nil || value == nil {
		return nil, fmt.Errorf("a value of run %s cannot be decrypted: %w", s.run, ErrDamaged)
	}
	return value, nil
}

// Erased is what an erasure puts in the place of a payload.
const Erased = `{"erased":true}`

func erased(value []byte) bool {
	return len(value) == 0 || string(value) == "null" || string(value) == Erased
}

// StoredText is how long a text of a new run is when it is stored.
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

// OpenText opens what Text sealed, and leaves what an erasure left.
func (s *Seal) OpenText(at Place, text []byte) ([]byte, error) {
	if s == nil || erased(text) {
		return text, nil
	}
	sealed, marked := bytes.CutPrefix(text, []byte(sealMark))
	value, err := base64.RawStdEncoding.AppendDecode(nil, sealed)
	if err != nil || !marked || len(value) < SealOverhead {
		return nil, fmt.Errorf("a value of run %s is not encrypted: %w", s.run, ErrDamaged)
	}
	return s.OpenBytes(at, value)
}

// ViewText is OpenText for a view: of a damaged value it returns nil. Its item fails with the reason.
func (s *Seal) ViewText(at Place, text []byte) ([]byte, error) {
	value, err := s.OpenText(at, text)
	if errors.Is(err, ErrDamaged) {
		return nil, nil
	}
	return value, err
}

// Params seals a run's parameters for batchrun.params: an object, of an encrypted run a string.
func (s *Seal) Params(object json.RawMessage) json.RawMessage {
	if s == nil {
		return object
	}
	return fmt.Appendf(nil, `"%s"`, s.Text(Place(paramsPlace), object)) // base64 needs no escapes
}

// OpenParams opens what Params sealed, and leaves nil.
func (s *DB) OpenParams(ctx context.Context, from pg.Querier, run workqueue.RunID, stored []byte) ([]byte, error) {
	if stored == nil {
		return nil, nil
	}
	seal, err := s.Seal(ctx, from, run)
	if err != nil {
		return nil, err
	}
	sealed := bytes.Trim(stored, `"`)
	switch { // unlike a payload, an erasure leaves them sealed
	case seal == nil && bytes.HasPrefix(stored, []byte("{")):
		return stored, nil
	case seal == nil || !bytes.HasPrefix(sealed, []byte(sealMark)):
		return nil, fmt.Errorf("parameters: a value of run %s is not encrypted: %w", run, ErrDamaged)
	}
	object, err := seal.OpenText(Place(paramsPlace), sealed)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	return object, nil
}

// Params is OpenParams, as a map.
func (s *DB) Params(ctx context.Context, from pg.Querier, run workqueue.RunID, stored []byte,
) (params map[string]string, err error) {
	object, err := s.OpenParams(ctx, from, run, stored)
	if err == nil {
		err = json.Unmarshal(object, &params)
	}
	return params, err
}
