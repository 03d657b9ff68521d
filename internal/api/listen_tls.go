package api

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certificateLook is how often it is looked whether the certificate was renewed.
const certificateLook = time.Minute

// serverTLS returns the settings of TLS with the certificate of the files, which may be renewed without a restart.
func serverTLS(guarded *Exposure) (*tls.Config, error) {
	c := &certificate{certFile: guarded.TLSCert, keyFile: guarded.TLSKey, log: cmp.Or(guarded.Log, zap.NewNop())}
	if err := c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.current,
	}, nil
}

// certificate is read again when its file has changed.
type certificate struct {
	certFile, keyFile string
	log               *zap.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	of     time.Time // when the file was written
	looked time.Time
}

func (c *certificate) load() error {
	info, err := os.Stat(c.certFile)
	if err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	c.loaded, c.of, c.looked = &pair, info.ModTime(), time.Now()
	return nil
}

// current returns the certificate. One that cannot be read any more stays what it was: an old one is better than none.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < certificateLook {
		return c.loaded, nil
	}
	c.looked = time.Now()
	if info, err := os.Stat(c.certFile); err == nil && info.ModTime().Equal(c.of) {
		return c.loaded, nil
	}
	if err := c.load(); err != nil {
		c.log.Warn("the renewed certificate cannot be used; the one before it stays", zap.Error(err))
	}
	return c.loaded, nil
}
