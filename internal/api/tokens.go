package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const (
	seeTokens = "tranche token list"
	// Not a wait: the longest life of a token that has an end.
	maxTokenLife = 10 * 365 * 24 * time.Hour
)

// TokenList is all tokens.
type TokenList struct {
	Tokens []identity.TokenView `json:"tokens"`
}

// TokenSettings is a token to be made.
type TokenSettings struct {
	Name      string      `json:"name" minLength:"1" maxLength:"100" doc:"whose it is, for the audit log" example:"ci"`
	Role      access.Role `json:"role" enum:"viewer,operator,admin"`
	ExpiresIn string      `json:"expires_in,omitempty" doc:"its life; absent: until it is revoked" example:"720h"`
}

// CreatedToken is a new token. Its secret is in no other answer, ever.
type CreatedToken struct {
	identity.TokenView

	Secret string `json:"secret" doc:"shown this once" format:"password"`
}

func (s *adminRoutes) registerTokens(api huma.API) {
	list := kernel.Get("list-tokens", "/tokens", "List tokens, newest first, without their secrets")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(list)), s.listTokens)
	kernel.Register(s.Kernel, api, kernel.Unstored(kernel.AboutCredentials(kernel.ByAdmin(huma.Operation{
		OperationID: "create-token", Method: http.MethodPost, Path: "/tokens", Summary: "Make a token",
		Description: "The answer holds its secret, which is kept nowhere: there is no other way to learn it.",
	}))), s.createToken)
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(huma.Operation{
		OperationID: "revoke-token", Method: http.MethodPost, Path: "/tokens/{id}/revoke", Summary: "Revoke a token",
		Description: "It does nothing more within 5 seconds, on all nodes, and the sessions that it began have ended. " +
			"Requests of its that are under way are broken off, streams too.",
	})), s.revokeToken)
}

func (s *adminRoutes) listTokens(ctx context.Context, _ *struct{}) (TokenList, error) {
	all, err := identity.New(s.Store).Tokens(ctx)
	return TokenList{Tokens: all}, err
}

type createTokenInput struct {
	kernel.Actor
	Body TokenSettings
}

func (s *adminRoutes) createToken(ctx context.Context, in *createTokenInput) (CreatedToken, error) {
	none := CreatedToken{}
	life, err := in.Body.Life()
	if err := cmp.Or(CheckTokenName(in.Body.Name), err); err != nil {
		return none, err
	}
	secret := access.NewSecret()
	made, err := identity.New(s.Store).CreateToken(ctx, identity.NewToken{
		Name: in.Body.Name, Role: string(in.Body.Role), Hash: access.HashOf(secret), ExpiresIn: life,
	}, in.Name)
	if err != nil {
		return none, err
	}
	return CreatedToken{TokenView: made, Secret: secret}, nil
}

// CheckTokenName refuses names that would mislead whoever reads the audit log.
func CheckTokenName(name string) error {
	if err := access.CheckName(name); err != nil {
		return kernel.BadInput("name: " + kernel.Cut(err.Error(), 2*kernel.MaxEchoed))
	}
	return nil
}

// Life is how long the token is good for; 0: until it is revoked.
func (t *TokenSettings) Life() (time.Duration, error) {
	if t.ExpiresIn == "" {
		return 0, nil
	}
	life, err := time.ParseDuration(t.ExpiresIn)
	if err != nil {
		return 0, kernel.BadInput("expires_in is " + strconv.Quote(kernel.Cut(t.ExpiresIn, kernel.MaxEchoed)) +
			"; write it like 720h or 30m")
	}
	return life, CheckTokenLife(life)
}

// CheckTokenLife refuses a life that no token can have.
func CheckTokenLife(life time.Duration) error {
	if life < time.Second || life > maxTokenLife {
		return kernel.BadInput(fmt.Sprintf("expires_in is %s; it must be between 1s and %s (ten years); leave it out for a "+
			"token that is good until it is revoked", life, maxTokenLife))
	}
	return nil
}

type revokeTokenInput struct {
	kernel.Actor
	ID string `path:"id" doc:"an id, the beginning of one (4 digits or more), or the name of the only such token"`
}

func (s *adminRoutes) revokeToken(ctx context.Context, in *revokeTokenInput) (identity.TokenView, error) {
	gone, err := identity.New(s.Store).RevokeToken(ctx, in.ID, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return gone, kernel.Seen(err, seeTokens)
}
