package alerts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// SinkTask is the name of the leader task that forwards the audit log.
const SinkTask = "audit sink"

const (
	// sinkEvery is the time between two polls for new entries of the audit log.
	sinkEvery = time.Second
	// sinkRetry is the pause after a failed attempt.
	sinkRetry = 5 * time.Second
	// sinkTimeout limits an attempt; then it is repeated.
	sinkTimeout = 10 * time.Second
	// sinkClose is how long to wait for the receiver to close after it has everything.
	sinkClose = 2 * time.Second
)

const (
	auditNotice = 13<<3 | 5 // facility log audit, severity notice (RFC 5424)
	syslogTime  = "2006-01-02T15:04:05.000000Z07:00"
	maxDatagram = 60_000
)

// Sink forwards the audit log to a file, by syslog (RFC 5424) or to a signed webhook, at least once and in the order of
// its chain.
type Sink struct {
	store     retention.Store
	target    *url.URL
	host      string
	receivers *Receivers
	secret    string
}

// NewSink returns a sink for a URL: file:///PATH, syslog://, syslog+tls:// or syslog+udp:// and HOST:PORT, or that of a
// webhook, by https or on loopback, which needs the name of a secret.
func NewSink(db *database.DB, target, secret string, receivers *Receivers) (*Sink, error) {
	u, err := url.Parse(target)
	if err == nil {
		err = checkSink(u)
	}
	if err != nil {
		return nil, fmt.Errorf("invalid %q: %w; use file:///PATH, syslog://HOST:514, syslog+tls://HOST:6514, "+
			"syslog+udp://HOST:514 or https://HOST/PATH", target, err)
	}
	if u.Scheme == "https" || u.Scheme == "http" {
		if _, err := (&hook{target, secret}).reachable(receivers); err != nil {
			return nil, err
		}
		return &Sink{store: retention.New(db), target: u, receivers: receivers, secret: secret}, nil
	}
	host, _ := os.Hostname() // "-" without one
	return &Sink{store: retention.New(db), target: u, host: cmp.Or(host, "-")}, nil
}

func checkSink(u *url.URL) error {
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("user, query and fragment are not supported")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.Path == "" {
			return errors.New("its path must be absolute")
		}
	case "syslog", "syslog+tls", "syslog+udp":
		if u.Port() == "" || u.Path != "" {
			return errors.New("it needs a host and a port")
		}
	case "http", "https":
		if u.Scheme == "http" && !net.ParseIP(u.Hostname()).IsLoopback() {
			return errors.New("anyone on the way could read it")
		}
	default:
		return errors.New("unknown scheme")
	}
	return nil
}

// Run forwards all new entries.
func (k *Sink) Run(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
	for {
		n, err := k.store.CarryAudit(ctx, lease, k.target.String(), k.send)
		switch {
		case err != nil:
			return sinkRetry, err
		case n < inspect.MaxAudit:
			return sinkEvery, nil
		}
	}
}

func (k *Sink) send(ctx context.Context, entries []inspect.AuditEntry) error {
	ctx, cancel := context.WithTimeout(ctx, sinkTimeout)
	defer cancel()
	switch k.target.Scheme {
	case "file":
		return k.write(entries)
	case "https", "http":
		return k.post(ctx, entries)
	}
	conn, err := k.dial(ctx)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	err = errors.Join(conn.SetDeadline(deadline), k.sendTo(conn, entries))
	return errors.Join(err, conn.Close())
}

func (k *Sink) write(entries []inspect.AuditEntry) error {
	file, err := os.OpenFile(k.target.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	last := []byte{'\n'}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		_, _ = file.ReadAt(last, info.Size()-1) // if it cannot be read, the next write fails too
	}
	if last[0] != '\n' { // the write before was cut off
		lines.WriteByte('\n')
	}
	for i := range entries {
		lines.Write(append(jsonOf(&entries[i]), '\n'))
	}
	_, err = file.Write(lines.Bytes())
	return errors.Join(err, file.Sync(), file.Close())
}

// post sends entries as one message. If they are sent again, others may be with them: receivers tell by their seals.
func (k *Sink) post(ctx context.Context, entries []inspect.AuditEntry) error {
	if len(entries) == 0 { // at the start
		return nil
	}
	last := &entries[len(entries)-1]
	data, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	body, err := httpfetch.WebhookBody("audit", last.At, data)
	if err != nil {
		return err
	}
	out := k.receivers.sender.Send(ctx, &httpfetch.Webhook{ID: fmt.Sprintf("audit-%d-%d", entries[0].Seal, last.Seal),
		URL: k.target.String(), Secret: k.secret, Body: body})
	if !out.Delivered {
		return errors.New(out.Reason())
	}
	return nil
}

func (k *Sink) dial(ctx context.Context) (net.Conn, error) {
	switch k.target.Scheme {
	case "syslog+tls":
		return new(tls.Dialer).DialContext(ctx, "tcp", k.target.Host)
	case "syslog+udp":
		return new(net.Dialer).DialContext(ctx, "udp", k.target.Host)
	default:
		return new(net.Dialer).DialContext(ctx, "tcp", k.target.Host)
	}
}

func (k *Sink) sendTo(conn net.Conn, entries []inspect.AuditEntry) error {
	stream, isStream := conn.(interface{ CloseWrite() error })
	var frames bytes.Buffer
	for i := range entries {
		message := k.message(&entries[i])
		if isStream {
			fmt.Fprintf(&frames, "%d %s", len(message), message) // RFC 6587, 3.4.1
			continue
		}
		if len(message) > maxDatagram {
			e := entries[i]
			e.Detail, e.Before, e.After = json.RawMessage(`{"too_large":true}`), nil, nil
			message = k.message(&e)
		}
		if _, err := conn.Write(message); err != nil {
			return err
		}
	}
	if !isStream {
		return nil
	}
	if _, err := conn.Write(frames.Bytes()); err != nil {
		return err
	}
	// Syslog acknowledges nothing: a receiver that has read everything closes, and one that has not resets.
	err := errors.Join(stream.CloseWrite(), conn.SetReadDeadline(time.Now().Add(sinkClose)))
	if err == nil {
		_, err = io.Copy(io.Discard, conn)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (k *Sink) message(e *inspect.AuditEntry) []byte {
	return fmt.Appendf(nil, "<%d>1 %s %s tranche %d audit - %s", auditNotice, e.At.UTC().Format(syslogTime), k.host,
		os.Getpid(), jsonOf(e))
}

func jsonOf(e *inspect.AuditEntry) []byte {
	doc, _ := json.Marshal(e) // texts, numbers and documents of PostgreSQL
	return doc
}
