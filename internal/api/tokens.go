package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const (
	seeTokens = "tranche token list"
	// The maximum life of a token that expires.
	maxTokenLife = 10 * 365 * 24 * time.Hour
)

// TokenList lists all tokens.
type TokenList struct {
	Tokens []identity.TokenView `json:"tokens"`
}

// TokenSettings describes a token to create.
type TokenSettings struct {
	Name      string            `json:"name" minLength:"1" maxLength:"100" doc:"whose it is, for the audit log" example:"ci"`
	Role      access.Role       `json:"role" enum:"none,watcher,viewer,operator,admin" doc:"in every namespace, and for all that belongs to none"`
	Grants    map[string]string `json:"grants,omitempty" doc:"further roles, by namespace" example:"{\"team-a\":\"operator\"}"`
	ExpiresIn string            `json:"expires_in,omitempty" doc:"its life; absent: as long as the server allows" example:"720h"`
	Networks  []string          `json:"networks,omitempty" doc:"where it may be used from; absent: anywhere" example:"[\"10.0.0.0/8\"]" maxItems:"100"`
}

// TokenRotation says how long both tokens are good.
type TokenRotation struct {
	Overlap string `json:"overlap,omitempty" doc:"how long the old token stays valid; 24h by default" example:"24h"`
}

// CreatedToken is a new token. No other answer ever has its secret.
type CreatedToken struct {
	identity.TokenView

	Secret string `json:"secret" doc:"shown this once" format:"password"`
}

// byAdminAnywhere opens an operation also to admins of namespaces, for tokens without rights elsewhere.
func byAdminAnywhere(op huma.Operation) huma.Operation {
	return apicore.In(apicore.Anywhere, apicore.ByAdmin(op))
}

func (s *adminRoutes) registerTokens(api huma.API) {
	list := apicore.Get("list-tokens", "/tokens", "List tokens, newest first, without their secrets")
	list.Description = "An admin of namespaces sees and changes the tokens that have rights only there."
	apicore.Register(s.Core, api, apicore.AboutCredentials(byAdminAnywhere(list)), s.listTokens)
	create := apicore.Post("create-token", "/tokens", "Create a token",
		"The answer holds its secret, which is kept nowhere: there is no other way to learn it.")
	apicore.Register(s.Core, api, apicore.FourEyes("tokens",
		apicore.Unstored(apicore.AboutCredentials(byAdminAnywhere(create)))), s.createToken)
	rotate := apicore.Post("rotate-token", "/tokens/{id}/rotate", "Rotate a token",
		"The new token has the same name, role, networks and lifetime. The old one ends after the overlap.")
	apicore.Register(s.Core, api, apicore.Previewed(apicore.FourEyes("tokens",
		apicore.Unstored(apicore.AboutCredentials(byAdminAnywhere(rotate)))), pinToken(s.Store)), s.rotateToken)
	revoke := apicore.Post("revoke-token", "/tokens/{id}/revoke", "Revoke a token",
		"Within 5 seconds all nodes refuse it, its sessions end, and its requests in progress, streams "+
			"included, are interrupted.")
	apicore.Register(s.Core, api, apicore.AboutCredentials(byAdminAnywhere(revoke)), s.revokeToken)
}

func (s *adminRoutes) listTokens(ctx context.Context, _ *struct{}) (TokenList, error) {
	all, err := identity.New(s.Store).Tokens(ctx)
	return TokenList{Tokens: all}, err
}

type createTokenInput struct {
	apicore.Actor
	Body TokenSettings
}

// Check also refuses what a second administrator could only reject.
func (in *createTokenInput) Check() error {
	_, err := in.Body.New("")
	return cmp.Or(in.Actor.Check(), CheckTokenName(in.Body.Name), err)
}

func (s *adminRoutes) createToken(ctx context.Context, in *createTokenInput) (CreatedToken, error) {
	none := CreatedToken{}
	secret := access.NewSecret()
	n, err := in.Body.New(secret)
	if err == nil {
		err = in.Body.within(workqueue.Namespaces(ctx))
	}
	if err == nil {
		n.Makers, err = s.Eyes(ctx, in.Name)
	}
	if err != nil {
		return none, err
	}
	if most := s.config.TokenMaxAge; most > 0 {
		if n.ExpiresIn = cmp.Or(n.ExpiresIn, most); n.ExpiresIn > most {
			return none, apicore.BadInput(fmt.Sprintf("expires_in is %s; this server allows tokens of up to %s "+
				"(--token-max-age)", n.ExpiresIn, most))
		}
	}
	made, err := identity.New(s.Store).CreateToken(ctx, n, in.Name)
	return CreatedToken{TokenView: made, Secret: secret}, err
}

// within refuses rights outside of namespaces; nil: unlimited.
func (t *TokenSettings) within(namespaces []string) error {
	elsewhere := func(name string) bool { return !slices.Contains(namespaces, name) }
	if namespaces == nil || t.Role == access.None && !slices.ContainsFunc(slices.Collect(maps.Keys(t.Grants)), elsewhere) {
		return nil
	}
	return apicore.Denied(http.StatusForbidden, fmt.Sprintf("grants: want only namespace %s, for example --grant "+
		"%s=operator; or leave out --namespace", strings.Join(namespaces, " or "), namespaces[0]))
}

// New is the token to be created, with a secret.
func (t *TokenSettings) New(secret string) (identity.NewToken, error) {
	n := identity.NewToken{Name: t.Name, Role: string(t.Role), Hash: access.HashOf(secret), Grants: t.Grants}
	for _, role := range t.Grants {
		if _, err := access.ParseRole(role); err != nil {
			return n, apicore.BadInput("grants: " + apicore.Cut(err.Error(), 2*apicore.MaxEchoed))
		}
	}
	if t.Role == access.None && len(t.Grants) == 0 {
		return n, apicore.BadInput("role is none, and there are no grants; give a role, or a role in a namespace")
	}
	for _, text := range t.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return n, apicore.BadInput("networks: " + strconv.Quote(apicore.Echo(text)) +
				" is not an address and bits, like 10.0.0.0/8 or 2001:db8::1/128")
		}
		n.Networks = append(n.Networks, network.Masked().String())
	}
	var err error
	n.ExpiresIn, err = t.Life()
	return n, err
}

const (
	// DefaultOverlap is how long a rotated token stays valid.
	DefaultOverlap = 24 * time.Hour
	maxOverlap     = 30 * 24 * time.Hour
)

// CheckOverlap refuses an overlap out of range.
func CheckOverlap(overlap time.Duration) error {
	if overlap < 0 || overlap > maxOverlap {
		return apicore.BadInput(fmt.Sprintf("overlap is %s; it must be between 0s and %s", overlap, maxOverlap))
	}
	return nil
}

// everywhere is the context of a change that names a token: for an admin of the installation, a namespace in which they
// act (--namespace) does not limit it.
func everywhere(ctx context.Context) context.Context {
	if who, known := access.From(ctx); known && !who.Role.Allows(access.Admin) {
		return ctx
	}
	return workqueue.InScope(ctx, workqueue.Scope{})
}

type rotateTokenInput struct {
	apicore.Actor
	ID   string `path:"id" doc:"an id, the beginning of one (4 digits or more), or the name of the only such token"`
	Body TokenRotation
}

// Pinned is the ID after pinToken.
func (in *rotateTokenInput) Pinned() string { return in.ID }

func pinToken(db *database.DB) func(context.Context, *rotateTokenInput) (any, error) {
	return func(ctx context.Context, in *rotateTokenInput) (any, error) {
		token, err := identity.New(db).Token(everywhere(ctx), in.ID)
		if err != nil {
			return nil, apicore.Seen(err, seeTokens)
		}
		in.ID, token.LastUsedAt = token.ID.String(), nil
		return token, nil
	}
}

func (s *adminRoutes) rotateToken(ctx context.Context, in *rotateTokenInput) (CreatedToken, error) {
	overlap, err := time.ParseDuration(cmp.Or(in.Body.Overlap, DefaultOverlap.String()))
	if err != nil {
		err = apicore.BadInput("overlap is " + strconv.Quote(apicore.Echo(in.Body.Overlap)) + "; write it like 24h")
	}
	if err := cmp.Or(err, CheckOverlap(overlap)); err != nil {
		return CreatedToken{}, err
	}
	makers, err := s.Eyes(ctx, in.Name)
	if err != nil {
		return CreatedToken{}, err
	}
	secret := access.NewSecret()
	made, err := identity.New(s.Store).RotateToken(everywhere(ctx), in.ID, access.HashOf(secret), overlap,
		s.config.TokenMaxAge, in.Name, makers)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return CreatedToken{TokenView: made, Secret: secret}, apicore.Seen(err, seeTokens)
}

// CheckTokenName refuses names that would mislead readers of the audit log.
func CheckTokenName(name string) error {
	if err := access.CheckTokenName(name); err != nil {
		return apicore.BadInput("name: " + apicore.Cut(err.Error(), 2*apicore.MaxEchoed))
	}
	return nil
}

// Life is how long the token is valid; 0: until it is revoked.
func (t *TokenSettings) Life() (time.Duration, error) {
	if t.ExpiresIn == "" {
		return 0, nil
	}
	life, err := time.ParseDuration(t.ExpiresIn)
	if err != nil {
		return 0, apicore.BadInput("expires_in is " + strconv.Quote(apicore.Echo(t.ExpiresIn)) +
			"; write it like 720h or 30m")
	}
	return life, CheckTokenLife(life)
}

// CheckTokenLife refuses a life out of range.
func CheckTokenLife(life time.Duration) error {
	if life < time.Second || life > maxTokenLife {
		return apicore.BadInput(fmt.Sprintf("expires_in is %s; it must be between 1s and %s (ten years); leave it out for a "+
			"token that is good until it is revoked", life, maxTokenLife))
	}
	return nil
}

type revokeTokenInput struct {
	apicore.Actor
	ID string `path:"id" doc:"an id, the beginning of one (4 digits or more), or the name of the only such token"`
}

func (s *adminRoutes) revokeToken(ctx context.Context, in *revokeTokenInput) (identity.TokenView, error) {
	gone, err := identity.New(s.Store).RevokeToken(everywhere(ctx), in.ID, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return gone, apicore.Seen(err, seeTokens)
}
