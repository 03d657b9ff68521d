package api

import (
	"context"
	"maps"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// Info says what this server is and where its parts are.
type Info struct {
	Version string              `json:"version"`
	Session workqueue.SessionID `json:"session"`
	NATS    string              `json:"nats"`
	Parts   map[string]string   `json:"parts"`
}

// doctorTimeout is how long the doctor may take.
const doctorTimeout = 10 * time.Minute

// adminConfig is what the routes of the system need beside the kernel.
type adminConfig struct {
	Version string
	Info    map[string]string // where things are, for people

	// OIDC lets people log in by a provider of identities; nil: there is none. It needs Access.
	OIDC *access.OIDC
	// SecureCookies says that browsers come by TLS.
	SecureCookies bool

	Health *health.Watch // what a person must see to
	Whole  *health.Watch // the same, of which lists are not cut
}

// adminRoutes see to the system itself: who may use it, what it keeps, and how it is.
type adminRoutes struct {
	*Kernel

	config adminConfig
}

// newAdmin returns the routes of the system.
func newAdmin(k *Kernel, config adminConfig) *adminRoutes { return &adminRoutes{k, config} }

// Register adds the routes.
func (s *adminRoutes) Register(api huma.API) {
	s.registerAudit(api)
	s.registerRetention(api)
	s.registerStreamSettings(api)
	s.registerSystem(api)
	s.registerSession(api)
	s.registerTokens(api)
	s.registerSessions(api)
	s.registerHealth(api)
}

func (s *adminRoutes) registerSystem(api huma.API) {
	register(s.Kernel, api, get("info", "/info", "What this server is"), s.info)
	check := heavy(get("doctor", "/doctor", "Check the invariants over the whole database"))
	registerWithin(s.Kernel, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (doctor.Report, error) {
		return doctor.New(s.store).Doctor(ctx)
	})
}

func (s *adminRoutes) info(context.Context, *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Version, Session: s.node.Session(), NATS: s.NC.ConnectedUrlRedacted(),
		Parts: map[string]string{},
	}
	maps.Copy(info.Parts, s.config.Info)
	return info, nil
}
