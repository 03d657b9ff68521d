package main

import (
	"context"
	"net"
	"net/url"
	"strconv"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// accessFlags say who may use the API, and how they reach it.
type accessFlags struct {
	Auth        string `env:"TRANCHE_AUTH" enum:"off,on" default:"off" help:"on: who asks needs a token or a login; off, for loopback only, makes everybody an admin (${default})." placeholder:"off|on"`
	TLSCert     string `name:"tls-cert" env:"TRANCHE_TLS_CERT" help:"Certificate of the API, in PEM; read again when it is renewed." placeholder:"FILE"`
	TLSKey      string `name:"tls-key" env:"TRANCHE_TLS_KEY" help:"The key of --tls-cert." placeholder:"FILE"`
	BehindProxy bool   `env:"TRANCHE_BEHIND_PROXY" help:"A proxy of yours ends TLS in front of the API, and says in X-Forwarded-For who asks."`

	oidcFlags
}

func (f *accessFlags) exposure(log *zap.Logger) api.Exposure {
	return api.Exposure{Auth: f.Auth == "on", TLSCert: f.TLSCert, TLSKey: f.TLSKey, BehindProxy: f.BehindProxy, Log: log}
}

// guarded adds to the settings of the API who may use it.
func (s *serveCommand) guarded(config api.Config, p *parts) (api.Config, error) {
	exposure := s.exposure(config.Log)
	config.SecureCookies, config.BehindProxy = exposure.Encrypted(), s.BehindProxy
	config.Hosts = append(append(config.Hosts, ownHosts(s.Listen)...), s.publicHosts()...)
	if !exposure.Auth {
		return config, nil
	}
	config.OIDC = p.oidc
	var err error
	config.Access, err = access.New(identity.New(p.store), access.Config{Log: config.Log.Named("access")})
	return config, err
}

// ownHosts is the name that --listen has, when it is one that somebody can call the server by.
func ownHosts(listen string) []string {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		return nil
	}
	return []string{host}
}

// at is where the API is found from this machine.
func (s *serveCommand) at(p *parts) string {
	address := p.listener.Addr().String()
	if tcp, ok := p.listener.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		address = net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	if s.TLSCert != "" {
		return "https://" + address
	}
	return "http://" + address
}

// askForToken tells how to make the first token, when nobody could log in yet.
func (s *serveCommand) askForToken(ctx context.Context, term *cli.Console, p *parts) {
	if s.Auth != "on" || s.OIDCIssuer != "" { // people log in elsewhere
		return
	}
	found, err := identity.New(p.store).HasTokens(ctx)
	if err != nil || found {
		return
	}
	term.Note("nobody can log in yet; make the first token with:\n\n  tranche token create %s --name %s --role admin\n",
		s.whereTokensAre(p), cli.ShellWord(cli.OSUser()))
}

// whereTokensAre is the flag by which a command of this machine finds the same database. Passwords are left out: the
// line ends up in logs.
func (s *serveCommand) whereTokensAre(p *parts) string {
	if s.Database == "" {
		return "--data-dir " + cli.ShellWord(p.directory)
	}
	parsed, err := url.Parse(s.Database)
	if err != nil || parsed.Scheme == "" {
		return "--database URL"
	}
	if _, secret := parsed.User.Password(); secret {
		parsed.User = url.UserPassword(parsed.User.Username(), "PASSWORD")
	}
	query := parsed.Query()
	if query.Has("password") {
		query.Set("password", "PASSWORD")
		parsed.RawQuery = query.Encode()
	}
	return "--database " + cli.ShellWord(parsed.String())
}
