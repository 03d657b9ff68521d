package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/identity"
)

type accessFlags struct {
	Auth    string `env:"TRANCHE_AUTH" enum:"off,on" default:"off" help:"on: callers need a token or a login; off, for loopback only: every caller is an admin (${default})." placeholder:"off|on"`
	TLSCert string `name:"tls-cert" env:"TRANCHE_TLS_CERT" help:"Certificate of the API, in PEM; read again when it is renewed." placeholder:"FILE"`
	TLSKey  string `name:"tls-key" env:"TRANCHE_TLS_KEY" help:"The key of --tls-cert." placeholder:"FILE"`

	ClientCA    string   `name:"client-ca" env:"TRANCHE_CLIENT_CA" help:"Authorities of client certificates, in PEM: one with a role replaces a token. Needs --tls-cert and --auth on." placeholder:"FILE"`
	ClientCRL   string   `name:"client-crl" env:"TRANCHE_CLIENT_CRL" help:"Revocation lists of --client-ca, in PEM; read again when renewed." placeholder:"FILE"`
	ClientRoles []string `name:"client-roles" env:"TRANCHE_CLIENT_ROLES" sep:";" help:"Which subject has which role, like 'CN=billing,O=Bank=operator;CN=ops=admin'." placeholder:"SUBJECT=ROLE"`

	TrustedProxies []netip.Prefix `env:"TRANCHE_TRUSTED_PROXIES" help:"Addresses of your TLS-terminating proxies, like 10.0.0.0/8; their X-Forwarded-For is trusted." placeholder:"10.0.0.0/8"`

	TokenMaxAge    time.Duration `env:"TRANCHE_TOKEN_MAX_AGE" within:"0s," help:"Maximum lifetime of new tokens, such as 2160h; unlimited by default." placeholder:"TIME"`
	FourEyes       []string      `env:"TRANCHE_FOUR_EYES" help:"Acts of administrators that another one must confirm within a day: erase, retention, tokens, delete. Set it on every server." placeholder:"KINDS"`
	MaxRequestRate int           `env:"TRANCHE_MAX_REQUEST_RATE" default:"1000" within:"1,1000000" help:"With --auth on, reads a second, and as many changes, allowed to one caller (${default}); bursts of five times that." placeholder:"N"`

	oidcFlags
}

func (f *accessFlags) exposure(clients *access.Certificates, log *zap.Logger) api.Exposure {
	e := api.Exposure{Auth: f.Auth == "on", TLSCert: f.TLSCert, TLSKey: f.TLSKey,
		TrustedProxies: f.TrustedProxies, FourEyes: f.FourEyes, Log: log}
	if clients != nil {
		e.ClientCA = clients.Pool
	}
	return e
}

// clients returns the settings of the flags; nil without --client-ca.
func (f *accessFlags) clients(log *zap.Logger) (*access.Certificates, error) {
	switch {
	case f.ClientCA == "" && f.ClientCRL == "" && len(f.ClientRoles) == 0:
		return nil, nil //nolint:nilnil // none are set
	case f.ClientCA == "" || f.TLSCert == "" || f.Auth != "on":
		return nil, errors.New("client certificates need --client-ca, --tls-cert and --auth on")
	}
	roles, err := rolesOf("--client-roles", "SUBJECT", f.ClientRoles)
	if err != nil {
		return nil, err
	}
	return access.NewCertificates(access.CertificatesConfig{CAFile: f.ClientCA, CRLFile: f.ClientCRL, Roles: roles,
		Log: log})
}

// rolesOf reads pairs; what has a role may contain = itself.
func rolesOf(flag, what string, pairs []string) (map[string]access.Role, error) {
	roles := map[string]access.Role{}
	for _, pair := range pairs {
		at := strings.LastIndexByte(pair, '=')
		_, _, err := access.ParseGrant(pair[at+1:])
		if err != nil || at < 1 || roles[pair[:at]] != "" {
			return nil, fmt.Errorf("%s %q is not %[3]s=ROLE or %[3]s=NAMESPACE:ROLE, with one of the roles watcher, viewer, "+
				"operator and admin, and each %[3]s once", flag, pair, what)
		}
		roles[pair[:at]] = access.Role(pair[at+1:])
	}
	return roles, nil
}

func (s *serveCommand) guarded(config api.Config, p *parts) (api.Config, error) {
	exposure := s.exposure(nil, config.Log)
	config.BasePath = s.basePath()
	config.SecureCookies, config.TrustedProxies = exposure.Encrypted(), s.TrustedProxies
	config.TokenMaxAge = s.TokenMaxAge
	config.FourEyes = s.FourEyes
	config.Hosts = append(config.Hosts, ownHosts(s.Listen)...)
	if public, err := s.public(); err == nil { // as browsers call it
		config.Hosts = append(config.Hosts, public.Hostname())
	}
	if !exposure.Auth {
		return config, nil
	}
	config.OIDC, config.Certificates = p.oidc, p.clients
	var err error
	config.Access, err = access.New(identity.New(p.store), access.Config{Log: config.Log.Named("access"),
		RequestRate: s.MaxRequestRate})
	return config, err
}

// ownHosts returns the name in --listen, unless it is not one to call the server by.
func ownHosts(listen string) []string {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		return nil
	}
	return []string{host}
}

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

// askForToken prints how to create the first token, if no login is possible yet.
func (s *serveCommand) askForToken(ctx context.Context, term *cli.Console, p *parts) {
	if s.Auth != "on" || s.OIDCIssuer != "" { // logins use the provider
		return
	}
	found, err := identity.New(p.store).HasTokens(ctx)
	if err != nil || found {
		return
	}
	term.Note("no one can log in yet; create the first token with:\n\n  tranche token create %s --name %s --role admin\n",
		s.whereTokensAre(p), health.ShellWord(cli.OSUser()))
}

// whereTokensAre returns the flag for the same database, without its password, since the line is logged.
func (s *serveCommand) whereTokensAre(p *parts) string {
	if s.Database == "" {
		return "--data-dir " + health.ShellWord(p.directory)
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
	return "--database " + health.ShellWord(parsed.String())
}

type oidcFlags struct {
	OIDCIssuer     string   `name:"oidc-issuer" env:"TRANCHE_OIDC_ISSUER" help:"Let people log in to the dashboard by this identity provider." placeholder:"URL"`
	OIDCClientID   string   `name:"oidc-client-id" env:"TRANCHE_OIDC_CLIENT_ID" help:"Client ID of this server at the provider." placeholder:"ID"`
	OIDCSecretFile string   `name:"oidc-client-secret-file" env:"TRANCHE_OIDC_CLIENT_SECRET_FILE" help:"A file with the secret that the provider gave this server, if it did." placeholder:"FILE"`
	OIDCScopes     []string `name:"oidc-scopes" env:"TRANCHE_OIDC_SCOPES" default:"email,profile" help:"Scopes to request in addition to openid (${default})." placeholder:"NAMES"`
	OIDCUserClaim  string   `name:"oidc-user-claim" env:"TRANCHE_OIDC_USER_CLAIM" help:"The claim by which the audit log calls people (a verified email, else the subject)." placeholder:"NAME"`
	OIDCRoleClaim  string   `name:"oidc-role-claim" env:"TRANCHE_OIDC_ROLE_CLAIM" default:"groups" help:"Claim that gives roles; dots select a nested member (${default})." placeholder:"NAME"`
	OIDCRoles      []string `name:"oidc-roles" env:"TRANCHE_OIDC_ROLES" help:"Roles of the claim's values, everywhere or in a namespace, like staff=viewer,dev=team-a:operator." placeholder:"VALUE=ROLE"`
	OIDCDefault    string   `name:"oidc-default-role" env:"TRANCHE_OIDC_DEFAULT_ROLE" enum:"none,watcher,viewer,operator,admin" default:"none" help:"The role of users with none of these values (${default}: they may not log in)." placeholder:"ROLE"`
	PublicURL      string   `name:"public-url" env:"TRANCHE_PUBLIC_URL" help:"URL of this server in browsers, optionally with a path prefix; used in links of alerts and for the identity provider's redirect." placeholder:"URL"`
}

// login returns the settings of the flags; nil without --oidc-issuer.
func (f *oidcFlags) login(auth bool) (*access.OIDC, error) {
	if f.OIDCIssuer == "" {
		return nil, nil //nolint:nilnil // not set
	}
	if !auth {
		return nil, errors.New("--oidc-issuer needs a login; add --auth on")
	}
	public, err := f.public()
	if err != nil {
		return nil, err
	}
	roles, err := rolesOf("--oidc-roles", "VALUE", f.OIDCRoles)
	if err != nil {
		return nil, err
	}
	config := access.OIDCConfig{
		Issuer: f.OIDCIssuer, ClientID: f.OIDCClientID, RedirectURL: public.JoinPath(apicore.OIDCCallback).String(),
		Scopes: f.OIDCScopes, UserClaim: f.OIDCUserClaim, RoleClaim: f.OIDCRoleClaim, DefaultRole: access.Role(f.OIDCDefault),
		Roles: roles,
	}
	if f.OIDCSecretFile != "" {
		text, err := os.ReadFile(f.OIDCSecretFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		if config.ClientSecret = strings.TrimSpace(string(text)); config.ClientSecret == "" {
			return nil, fmt.Errorf("--oidc-client-secret-file %s is empty", f.OIDCSecretFile)
		}
	}
	return access.NewOIDC(config)
}

func (f *oidcFlags) public() (*url.URL, error) {
	public, err := url.Parse(f.PublicURL)
	plain := err == nil && public.RawQuery == "" && public.User == nil && public.RawPath == ""
	if !plain || public.Host == "" || public.Scheme != "https" && public.Scheme != "http" {
		return nil, fmt.Errorf("--public-url %q must be the URL at which browsers find this server, like "+
			"https://tranche.example.com: the provider of --oidc-issuer sends them back there", f.PublicURL)
	}
	return public, nil
}

// basePath is the path prefix of --public-url.
func (f *oidcFlags) basePath() string {
	if public, err := f.public(); err == nil {
		return strings.TrimRight(public.Path, "/")
	}
	return ""
}
