package startup

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/streams"
)

func (w *Wait) unconnected(err error) obstacle {
	o := obstacle{kind: "away", waiting: fmt.Sprintf("NATS, which does not answer at %s", w.Where())}
	if err != nil {
		o.waiting += ": " + err.Error()
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		o.kind = "name " + dns.Name
		o.waiting = fmt.Sprintf("NATS at %s: the name %s is not known yet (%v)", w.Where(), dns.Name, err)
	}
	end := func(kind, problem, remedy string) obstacle {
		return obstacle{kind: kind, waiting: "NATS at " + w.Where() + ", " + problem, patience: refusedTimeout,
			end: fmt.Sprintf("NATS at %s %s; %s", w.Where(), problem, remedy)}
	}
	switch said := ""; {
	case refusedUser(err):
		return end("user", "refuses this user: "+err.Error(), "check the user and password in --nats, or the file of "+
			"--nats-creds, against the server's configuration")
	case errors.Is(err, nats.ErrSecureConnWanted):
		return end("tls", "offers no TLS, which --nats requires", "give a nats:// URL, or have the server use TLS")
	case errors.Is(err, nats.ErrSecureConnRequired):
		return end("tls", "wants TLS", "give a tls:// URL")
	case untrusted(err, &said):
		return end("certificate", "has a certificate that is not trusted: "+said, "name the authority that signed it with "+
			"NATS_CA=FILE, and the server by a name that is in its certificate")
	case strings.Contains(textOf(err), "remote error: tls:"):
		return end("client certificate", "refuses this client's TLS: "+err.Error(), "give the certificate that it wants "+
			"with NATS_CERT=FILE and NATS_KEY=FILE")
	case errors.Is(err, nats.ErrNoInfoReceived) || strings.Contains(textOf(err), "first record does not look like"):
		return end("protocol", "does not speak as NATS does: "+err.Error(), "check the port: it is that of clients, 4222 "+
			"unless the server's configuration says otherwise")
	}
	return o
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func refusedUser(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked,
		nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// untrusted reports whether an error is about the peer's certificate, and sets why.
func untrusted(err error, why *string) bool {
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		err = bad.Err
	}
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, other := errors.AsType[x509.HostnameError](err)
	if unknown || invalid || other {
		*why = err.Error()
	}
	return unknown || invalid || other
}

func (w *Wait) byJetStream(err error) (o obstacle, ok bool) {
	here := "NATS at " + w.At
	if cluster := w.NC().ConnectedClusterName(); cluster != "" {
		here += ", of the cluster " + cluster + ","
	}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		o = obstacle{kind: "account", end: "JetStream is not enabled for the account of this user at " + here +
			"; add \"jetstream: enabled\" to the account in the server's configuration, or use a user of another account " +
			"(--nats, --nats-creds)"}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders):
		o = obstacle{kind: "jetstream", end: "JetStream is not enabled at " + here + "; start it as nats-server -js, or " +
			"add " +
			"\"jetstream {}\" to its configuration"}
	case stream.NotClustered(err):
		o = obstacle{kind: "replicas", first: true, end: fmt.Sprintf("%s is a single server and keeps one copy of a stream, "+
			"and %d are set; leave --stream-replicas out, or give 1", here, w.set().Replicas)}
	case stream.NoStorage(err):
		o = obstacle{kind: "room", first: true, end: fmt.Sprintf("JetStream of %s has no room for the streams (%v): "+
			"together they need %s (%d bytes) on each server that keeps them; raise max_file_store there, or the limit of the "+
			"account, or give the streams less with --work-max-bytes, --reply-max-bytes and the like", here, err,
			cli.Gibibytes(w.Needs()), w.Needs())}
	case stream.TooFewServers(err):
		o = obstacle{kind: "servers", first: true, patience: peersTimeout, end: fmt.Sprintf("%s has too few servers for "+
			"the replicas of each stream (%v); start the rest, or say with --stream-replicas 1 that one copy is "+
			"enough", here, err)}
	default:
		return w.conflict(err)
	}
	o.patience = cmp.Or(o.patience, refusedTimeout)
	o.waiting = "the streams: " + o.end
	if o.first {
		o.waiting += "; once they have been there, `tranche streams set` changes them"
	}
	return o, true
}

func (w *Wait) conflict(err error) (obstacle, bool) {
	if conflict, ok := errors.AsType[*stream.ConflictError](err); ok && streams.Keeps(conflict.Stream) {
		return obstacle{kind: "conflict", patience: refusedTimeout, waiting: conflict.Error(), end: conflict.Error()}, true
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || stream.Unavailable(err) {
		return obstacle{kind: "quorum", waiting: fmt.Sprintf("JetStream at %s, which does not answer yet: in a cluster it "+
			"needs more than half of its servers (%v)", w.At, err)}, true
	}
	return obstacle{}, false
}

// DatabaseRemedy adds a remedy to an error of connecting to PostgreSQL that will not pass.
func DatabaseRemedy(err error) error {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); !ok {
		return err
	}
	remedy, why := "", ""
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case "28P01", "28000":
			remedy = "check the user and password in --database, and pg_hba.conf of the server"
		case "3D000":
			remedy = "create it with CREATE DATABASE, or name another in --database"
		}
	}
	switch {
	case untrusted(err, &why):
		remedy = "name the authority that signed the server's certificate with sslrootcert=FILE in --database"
	case strings.Contains(textOf(err), "server refused TLS connection"):
		remedy = "make the server use TLS (ssl = on), or set sslmode=disable in --database"
	case remedy == "" && errors.As(err, new(*net.OpError)):
		remedy = "check that it runs, and --database"
	}
	if remedy == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, remedy)
}

// CheckScheme refuses URLs with other schemes.
func CheckScheme(flag, urls string, takes ...string) error {
	for one := range strings.SplitSeq(urls, ",") {
		scheme, _, ok := strings.Cut(strings.TrimSpace(one), "://")
		if !ok {
			continue
		}
		known := false
		for _, t := range takes {
			known = known || strings.EqualFold(scheme, t)
		}
		if !known {
			return fmt.Errorf("%s is a URL that begins with %q; it must begin with %s://", flag, scheme+"://",
				strings.Join(takes, ":// or "))
		}
	}
	return nil
}
