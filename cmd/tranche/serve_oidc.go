package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// oidcFlags say who vouches for people that log in to the dashboard.
type oidcFlags struct {
	OIDCIssuer     string   `name:"oidc-issuer" env:"TRANCHE_OIDC_ISSUER" help:"Let people log in to the dashboard by this provider of identities." placeholder:"URL"`
	OIDCClientID   string   `name:"oidc-client-id" env:"TRANCHE_OIDC_CLIENT_ID" help:"What the provider calls this server." placeholder:"ID"`
	OIDCSecretFile string   `name:"oidc-client-secret-file" env:"TRANCHE_OIDC_CLIENT_SECRET_FILE" help:"A file with the secret that the provider gave this server, if it did." placeholder:"FILE"`
	OIDCScopes     []string `name:"oidc-scopes" env:"TRANCHE_OIDC_SCOPES" default:"email,profile" help:"What to ask the provider for beside openid (${default})." placeholder:"NAMES"`
	OIDCUserClaim  string   `name:"oidc-user-claim" env:"TRANCHE_OIDC_USER_CLAIM" help:"The claim by which the audit log calls people (a verified email, else the subject)." placeholder:"NAME"`
	OIDCRoleClaim  string   `name:"oidc-role-claim" env:"TRANCHE_OIDC_ROLE_CLAIM" default:"groups" help:"The claim that roles go by; with dots, a member of a member (${default})." placeholder:"NAME"`
	OIDCRoles      []string `name:"oidc-roles" env:"TRANCHE_OIDC_ROLES" help:"Which of its values have which role, like staff=viewer,ops=operator." placeholder:"VALUE=ROLE"`
	OIDCDefault    string   `name:"oidc-default-role" env:"TRANCHE_OIDC_DEFAULT_ROLE" enum:"none,viewer,operator,admin" default:"none" help:"The role of those with none of these values (${default}: they may not log in)." placeholder:"ROLE"`
	PublicURL      string   `name:"public-url" env:"TRANCHE_PUBLIC_URL" help:"Where browsers find this server: links in alerts lead there, and the provider of identities sends people back there." placeholder:"URL"`
}

// login returns what the flags say; nil without --oidc-issuer.
func (f *oidcFlags) login(auth bool) (*access.OIDC, error) {
	if f.OIDCIssuer == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	if !auth {
		return nil, errors.New("--oidc-issuer is about who may log in, and without --auth on nobody has to; add --auth on")
	}
	public, err := f.public()
	if err != nil {
		return nil, err
	}
	config := access.OIDCConfig{
		Issuer: f.OIDCIssuer, ClientID: f.OIDCClientID, RedirectURL: public.JoinPath(kernel.OIDCCallback).String(),
		Scopes: f.OIDCScopes, UserClaim: f.OIDCUserClaim, RoleClaim: f.OIDCRoleClaim, DefaultRole: access.Role(f.OIDCDefault),
		Roles: map[string]access.Role{},
	}
	for _, pair := range f.OIDCRoles {
		value, name, _ := strings.Cut(pair, "=")
		role, err := access.ParseRole(name)
		if err != nil || value == "" {
			return nil, fmt.Errorf("--oidc-roles %q is not VALUE=ROLE with one of the roles viewer, operator and admin", pair)
		}
		config.Roles[value] = role
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

// public is where browsers find this server.
func (f *oidcFlags) public() (*url.URL, error) {
	public, err := url.Parse(f.PublicURL)
	plain := err == nil && (public.Path == "" || public.Path == "/") && public.RawQuery == "" && public.User == nil
	if !plain || public.Host == "" || public.Scheme != "https" && public.Scheme != "http" {
		return nil, fmt.Errorf("--public-url %q must be the URL at which browsers find this server, like "+
			"https://tranche.example.com: the provider of --oidc-issuer sends them back there", f.PublicURL)
	}
	return public, nil
}

// publicHosts is the name that browsers call this server by, when it is known.
func (f *oidcFlags) publicHosts() []string {
	if public, err := f.public(); err == nil {
		return []string{public.Hostname()}
	}
	return nil
}
