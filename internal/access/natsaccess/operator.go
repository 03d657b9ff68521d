package natsaccess

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

const (
	operatorName = "tranche"
	// systemAccount is the server's own account, required in operator mode.
	systemAccount = "SYS"
	credsEnding   = ".creds"
	// keysName is the directory of the signing keys, which servers and services do not need.
	keysName     = "keys"
	operatorFile = "operator.jwt"
	// responseLife is how long a service may take to answer.
	responseLife = time.Minute
)

// operatorHeader is the start of a server's file with JWT users.
const operatorHeader = header + `# Accounts are known by their JWTs, which the operator has signed.
operator: %s
system_account: %s
resolver: MEMORY
resolver_preload: {
`

// WriteOperator writes the server's file with the JWTs of an operator and of its accounts, and a file NAME.creds per
// user, into a directory. The signing keys are in DIR/keys. It returns the files, the server's first.
func (s *System) WriteOperator(dir string) ([]string, error) {
	keys, err := KeysIn(filepath.Join(dir, keysName))
	if err != nil {
		return nil, err
	}
	o := &operator{keys: keys, valid: s.Valid, public: map[string]string{}, pairs: map[string]nkeys.KeyPair{}}
	if o.pair, err = keys.pair("operator", nkeys.PrefixByteOperator); err != nil {
		return nil, err
	}
	if o.revoked, err = keys.revoked(); err != nil {
		return nil, err
	}
	accounts := append([]*Account{{Name: systemAccount}}, s.Accounts...)
	for _, a := range accounts {
		if o.pairs[a.Name], err = o.keys.pair(a.Name, nkeys.PrefixByteAccount); err != nil {
			return nil, err
		}
		if o.public[a.Name], err = o.pairs[a.Name].PublicKey(); err != nil {
			return nil, err
		}
	}
	var preload strings.Builder
	files := []string{filepath.Join(dir, ConfName)}
	for _, a := range accounts {
		token, err := o.account(a)
		if err != nil {
			return nil, fmt.Errorf("JWT of account %s: %w", a.Name, err)
		}
		fmt.Fprintf(&preload, "  %s: %s # %s\n", o.public[a.Name], token, a.Name)
		if a.User.Name == "" {
			continue
		}
		file := filepath.Join(dir, a.User.Name+credsEnding)
		if err := o.user(a, file); err != nil {
			return nil, fmt.Errorf("credentials of %s: %w", a.User.Name, err)
		}
		files = append(files, file)
	}
	token, err := o.operator()
	if err != nil {
		return nil, fmt.Errorf("JWT of the operator: %w", err)
	}
	conf := fmt.Sprintf(operatorHeader, token, o.public[systemAccount]) + preload.String() + "}\n"
	return files, write(files[0], []byte(conf))
}

type operator struct {
	keys    *Keys
	pair    nkeys.KeyPair
	pairs   map[string]nkeys.KeyPair // of accounts, by name
	public  map[string]string
	revoked jwt.RevocationList
	valid   time.Duration // of users' JWTs; 0: no end
}

// revokedFile has the users' keys that are revoked, and when.
const revokedFile = "revoked.json"

func (k *Keys) revoked() (list jwt.RevocationList, err error) {
	text, err := os.ReadFile(filepath.Join(k.dir, revokedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return list, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read the revoked keys: %w", err)
	}
	return list, nil
}

// Revoke lists the key of a user's credentials, written by WriteOperator, as revoked, and removes both. It
// has effect once WriteOperator has written the server's file again and servers have reloaded that.
func Revoke(dir, user string) error {
	file := filepath.Join(dir, user+credsEnding)
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%q has no credentials of an operator in %s: %w; restore the file: it names the key to revoke",
			user, dir, err)
	}
	token, err := jwt.ParseDecoratedJWT(text)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	keys := &Keys{dir: filepath.Join(dir, keysName)}
	list, err := keys.revoked()
	if err != nil {
		return err
	}
	if list == nil {
		list = jwt.RevocationList{}
	}
	list.Revoke(claims.Subject, time.Now())
	if text, err = json.Marshal(list); err != nil {
		return err
	}
	if err := write(filepath.Join(keys.dir, revokedFile), append(text, '\n')); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(keys.dir, user+seedEnding)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(file)
}

// operator returns the operator's JWT, which never changes: a running server accepts no other.
func (o *operator) operator() (string, error) {
	public, err := o.pair.PublicKey()
	if err != nil {
		return "", err
	}
	file := filepath.Join(o.keys.dir, operatorFile)
	if kept, err := os.ReadFile(file); err == nil {
		token := string(bytes.TrimSpace(kept))
		claims, err := jwt.DecodeOperatorClaims(token)
		if err == nil && claims.Subject == public && claims.SystemAccount == o.public[systemAccount] {
			return token, nil
		}
		return "", fmt.Errorf("%s is of other keys, and running servers accept no other operator; restore operator%s and "+
			"%s%[2]s there, or remove it for a new operator", file, seedEnding, systemAccount)
	}
	claims := jwt.NewOperatorClaims(public)
	claims.Name, claims.SystemAccount = operatorName, o.public[systemAccount]
	token, err := claims.Encode(o.pair)
	if err != nil {
		return "", err
	}
	return token, write(file, []byte(token+"\n"))
}

func (o *operator) account(a *Account) (string, error) {
	claims := jwt.NewAccountClaims(o.public[a.Name])
	claims.Name, claims.Revocations = a.Name, o.revoked
	if a.JetStream {
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit,
			Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	}
	if a.MaxConnections > 0 {
		claims.Limits.Conn, claims.Limits.Subs = int64(a.MaxConnections), int64(a.MaxSubscriptions)
	}
	for _, e := range a.Exports {
		claims.Exports.Add(e.claim())
	}
	for _, i := range a.Imports {
		claim, err := o.imported(a, i)
		if err != nil {
			return "", err
		}
		claims.Imports.Add(claim)
	}
	for _, m := range a.Mappings {
		claims.AddMapping(jwt.Subject(m.From), jwt.WeightedMapping{Subject: jwt.Subject(m.To), Weight: 100})
	}
	found := jwt.CreateValidationResults()
	claims.Validate(found)
	if bad := found.Errors(); len(bad) > 0 {
		return "", bad[0]
	}
	return claims.Encode(o.pair)
}

func (e *Export) claim() *jwt.Export {
	claim := &jwt.Export{Name: e.Subject, Subject: jwt.Subject(e.Subject), Type: kindOf(e.Stream), TokenReq: true}
	if e.Stream {
		return claim
	}
	claim.ResponseType, claim.ResponseThreshold = jwt.ResponseTypeSingleton, e.Threshold
	if e.Many {
		claim.ResponseType = jwt.ResponseTypeStream
	}
	return claim
}

func (o *operator) imported(a *Account, i Import) (*jwt.Import, error) {
	activation := jwt.NewActivationClaims(o.public[a.Name])
	activation.ImportSubject, activation.ImportType = jwt.Subject(i.Subject), kindOf(i.Stream)
	token, err := activation.Encode(o.pairs[i.Account])
	return &jwt.Import{Name: i.Subject, Subject: jwt.Subject(i.Subject), Account: o.public[i.Account], Token: token,
		LocalSubject: jwt.RenamingSubject(numbered(i.Local)), Type: kindOf(i.Stream)}, err
}

func numbered(subject string) string {
	parts := strings.Split(subject, ".")
	n := 0
	for i, part := range parts {
		if part == "*" {
			n++
			parts[i] = fmt.Sprintf("$%d", n)
		}
	}
	return strings.Join(parts, ".")
}

func kindOf(stream bool) jwt.ExportType {
	if stream {
		return jwt.Stream
	}
	return jwt.Service
}

func (o *operator) user(a *Account, file string) error {
	pair, err := o.keys.pair(a.User.Name, nkeys.PrefixByteUser)
	if err != nil {
		return err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return err
	}
	claims := jwt.NewUserClaims(public)
	claims.Name = a.User.Name
	if o.valid > 0 {
		claims.Expires = time.Now().Add(o.valid).Unix()
	}
	if a.User.Publish != nil {
		claims.Pub.Allow.Add(a.User.Publish...)
		claims.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: responseLife}
	}
	token, err := claims.Encode(o.pairs[a.Name])
	if err != nil {
		return err
	}
	seed, err := pair.Seed()
	if err != nil {
		return err
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		return err
	}
	return write(file, creds)
}
