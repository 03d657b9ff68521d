package admin

import (
	"github.com/tranchehq/tranche/internal/api"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// Tokens are who may use the API.
type Tokens struct {
	Create tokenCreate `cmd:"" help:"Make a token; its secret is shown this once."`
	List   tokenList   `cmd:"" help:"List tokens, newest first."`
	Revoke tokenRevoke `cmd:"" help:"Revoke a token: within 5 seconds it is of no use anywhere."`
}

// tokenPlace is where tokens and sessions are. The first one cannot be made through an API that needs one.
type tokenPlace struct {
	Database      string `xor:"place" help:"Straight in this database, instead of through a server; env: in that of TRANCHE_DATABASE." placeholder:"URL"`
	DataDir       string `xor:"place" help:"Straight in the private database of this data directory." placeholder:"DIR"`
	ThroughPooler bool   `env:"TRANCHE_THROUGH_POOLER" help:"--database is a pooler by transaction that does not make itself known as one."`
}

// tokenKeeper is the API, or a database.
type tokenKeeper interface {
	CreateToken(ctx context.Context, set client.TokenSettings, o ...client.CallOption) (client.CreatedToken, error)
	ListTokens(ctx context.Context, o ...client.CallOption) (client.TokenList, error)
	RevokeToken(ctx context.Context, ref string, o ...client.CallOption) (client.TokenView, error)
	ListSessions(ctx context.Context, o ...client.CallOption) (client.SessionList, error)
	RevokeSessions(ctx context.Context, set client.RevokeSessions, o ...client.CallOption) (client.RevokedSessions, error)
}

// open returns who keeps the tokens. The caller calls release.
func (p *tokenPlace) open(ctx context.Context, term *cli.Console) (keeper tokenKeeper, release func() error,
	err error) {
	none := func() error { return nil }
	url, stop := p.Database, none
	if url == "env" { // in a container, where no shell puts it in
		if url = os.Getenv("TRANCHE_DATABASE"); url == "" {
			return nil, none, cli.Usage("--database env: TRANCHE_DATABASE is not set")
		}
	}
	switch {
	case p.DataDir != "":
		if url, stop, err = privateDatabase(ctx, p.DataDir); err != nil {
			return nil, none, err
		}
	case p.Database == "":
		cl, err := term.Client()
		return cl, none, err
	}
	if err := migrations.Ready(ctx, url); err != nil {
		return nil, none, errors.Join(fmt.Errorf("the database of the tokens: %w", err), stop())
	}
	store, closeStore, err := database.Open(ctx, url, database.PoolConfig{MaxConns: 1, ThroughPooler: p.ThroughPooler})
	if err != nil {
		return nil, none, errors.Join(err, stop())
	}
	return &storedTokens{store, term}, func() error { closeStore(); return stop() }, nil
}

// privateDatabase finds the private PostgreSQL of a data directory: a serve runs it, or else it is run for a moment.
func privateDatabase(ctx context.Context, dir string) (url string, stop func() error, err error) {
	data := filepath.Join(dir, "postgres")
	if !embedded.Exists(data) { // a directory that was mistyped should not become one of ours
		return "", nil, fmt.Errorf("--data-dir %s holds no database of tranche serve; start one there first, or give "+
			"the one that serve says when it starts", dir)
	}
	private, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: data, Bound: true})
	if _, locked := errors.AsType[*embedded.LockedError](err); locked {
		url, err := embedded.RunningURL(ctx, data)
		return url, func() error { return nil }, err
	}
	if err != nil {
		return "", nil, fmt.Errorf("start the private PostgreSQL of --data-dir %s: %w", dir, err)
	}
	return private.URL(), func() error { return private.Stop(context.WithoutCancel(ctx)) }, nil
}

// storedTokens is tokens without an API between. It answers as the API would.
type storedTokens struct {
	store *database.DB
	term  *cli.Console
}

func (s *storedTokens) CreateToken(
	ctx context.Context, set client.TokenSettings, _ ...client.CallOption,
) (none client.CreatedToken, err error) {
	secret := access.NewSecret()
	life, err := (&api.TokenSettings{ExpiresIn: set.ExpiresIn}).Life()
	if err != nil {
		return none, err
	}
	made, err := identity.New(s.store).CreateToken(ctx, identity.NewToken{
		Name: set.Name, Role: string(set.Role), Hash: access.HashOf(secret), ExpiresIn: life,
	}, cli.OSUser())
	if err != nil {
		return none, err
	}
	return asSent[client.CreatedToken](s.term, api.CreatedToken{TokenView: made, Secret: secret})
}

func (s *storedTokens) ListTokens(ctx context.Context, _ ...client.CallOption) (none client.TokenList, err error) {
	all, err := identity.New(s.store).Tokens(ctx)
	if err != nil {
		return none, err
	}
	return asSent[client.TokenList](s.term, api.TokenList{Tokens: all})
}

func (s *storedTokens) RevokeToken(
	ctx context.Context, ref string, _ ...client.CallOption,
) (none client.TokenView, err error) {
	gone, err := identity.New(s.store).RevokeToken(ctx, ref, cli.OSUser())
	if err != nil {
		return none, err
	}
	return asSent[client.TokenView](s.term, gone)
}

type tokenCreate struct {
	Name      string        `required:"" help:"Whose it is: the actor in the audit log." placeholder:"NAME"`
	Role      string        `required:"" enum:"viewer,operator,admin" help:"viewer looks; operator changes runs; admin also makes tokens." placeholder:"ROLE"`
	ExpiresIn time.Duration `help:"How long it is good for, like 720h; until it is revoked, unless given." placeholder:"TIME"`
	tokenPlace
}

func (t *tokenCreate) Validate() error {
	if err := api.CheckTokenName(t.Name); err != nil { // it names the field
		return err
	}
	if t.ExpiresIn != 0 {
		return api.CheckTokenLife(t.ExpiresIn)
	}
	return nil
}

// Run makes a token. Its secret is all there is on standard output, so that a script can keep it.
func (t *tokenCreate) Run(ctx context.Context, term *cli.Console) (err error) {
	keeper, release, err := t.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	set := client.TokenSettings{Name: t.Name, Role: client.Role(t.Role)}
	if t.ExpiresIn != 0 {
		set.ExpiresIn = t.ExpiresIn.String()
	}
	made, err := keeper.CreateToken(ctx, set, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	until := "is good until it is revoked"
	if made.ExpiresAt != nil {
		until = "is good until " + cli.Moment(*made.ExpiresAt)
	}
	term.Note("token %s of %s, role %s, %s; this is the only time that it is shown. Log in with it at the dashboard, or "+
		"keep it in a file for --token-file (TRANCHE_TOKEN_FILE)", made.ID[:8], made.Name, made.Role, until)
	return term.Printf("%s\n", made.Secret)
}

type tokenList struct{ tokenPlace }

func (t *tokenList) Run(ctx context.Context, term *cli.Console) (err error) {
	keeper, release, err := t.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	list, err := keeper.ListTokens(ctx, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Tokens) == 0 {
		return term.Printf("there is no token; make one with: tranche token create --name NAME --role ROLE\n")
	}
	text := cli.Table{}
	text.Row("ID", "NAME", "ROLE", "STATE", "EXPIRES", "LAST USED", "MADE", "BY")
	for i := range list.Tokens {
		k := &list.Tokens[i]
		text.Row(k.ID[:8], cli.Inert(k.Name), k.Role, string(k.State), cli.MomentOrNever(k.ExpiresAt),
			cli.MomentOrNever(k.LastUsedAt), cli.Moment(k.CreatedAt), cli.Inert(k.CreatedBy))
	}
	return term.Printf("%s", text.String())
}

type tokenRevoke struct {
	Token string `arg:"" help:"An id, the beginning of one, or the name of the only such token."`
	tokenPlace
}

func (t *tokenRevoke) Run(ctx context.Context, term *cli.Console) (err error) {
	keeper, release, err := t.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	gone, err := keeper.RevokeToken(ctx, t.Token, term.Keep())
	if errors.Is(err, workqueue.ErrNotFound) {
		return fmt.Errorf("%w; see tranche token list", err)
	}
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("token %s of %s is revoked\n", gone.ID[:8], cli.Inert(gone.Name))
}
