package admin

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/cli"
)

// NATS says what a NATS server has to know.
type NATS struct {
	Config natsConfig `cmd:"" help:"Write the configuration of a NATS server: who may say what."`
}

type natsConfig struct {
	Service  []string `sep:"none" help:"A service and the endpoints that it serves; may be repeated, as all of these." placeholder:"NAME=ENDPOINT,…"`
	Caller   []string `sep:"none" help:"Who asks endpoints; all of them unless some are named. Of a service: what its flows and handlers ask." placeholder:"NAME[=ENDPOINT,…]"`
	Producer []string `sep:"none" help:"Who adds to collectors." placeholder:"NAME=COLLECTOR,…"`
	Tracker  []string `help:"Who uses the tracker service." placeholder:"NAME"`
	Viewer   []string `help:"Who looks at streams, consumers, events and listeners, and touches nothing." placeholder:"NAME"`
	Out      string   `help:"Write server.conf here, and a NAME.nk for each, with a seed; keys that are there are kept. Without it the configuration is printed, with passwords from the server's environment." placeholder:"DIR"`
	Operator bool     `help:"With --out: accounts and users by JWTs of an operator, and a NAME.creds for each."`
}

// Run prints the configuration, or writes it with the keys.
func (c *natsConfig) Run(_ context.Context, term *cli.Console) error {
	system, err := c.system()
	if err != nil {
		return cli.Usage(err.Error())
	}
	if c.Out == "" {
		if c.Operator {
			return cli.Usage("--operator needs --out: there are secrets to write")
		}
		if term.JSON {
			return term.Document(map[string]any{"config": system.Conf(nil)})
		}
		return term.Printf("%s", system.Conf(nil))
	}
	write, variable := system.WriteNkeys, "NATS_NKEY"
	if c.Operator {
		write, variable = system.WriteOperator, "NATS_CREDS"
	}
	files, err := write(c.Out)
	if err != nil {
		return fmt.Errorf("write the NATS configuration: %w", err)
	}
	if term.JSON {
		return term.Document(map[string]any{"files": files, "variable": variable})
	}
	return term.Printf("%s", told(files, variable))
}

// told says what is for whom.
func told(files []string, variable string) string {
	t := cli.Table{}
	t.Row("server", "nats-server -c "+files[0])
	for _, file := range files[1:] {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Row(name, variable+"="+file)
	}
	return t.String()
}

func (c *natsConfig) system() (*natsaccess.System, error) {
	roles := natsaccess.Roles{Trackers: c.Tracker, Viewers: c.Viewer}
	for _, list := range []struct {
		flag  string
		texts []string
		to    *[]natsaccess.Grant
	}{{"--service", c.Service, &roles.Services}, {"--caller", c.Caller, &roles.Callers},
		{"--producer", c.Producer, &roles.Producers}} {
		for _, text := range list.texts {
			grant, err := natsaccess.ParseGrant(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.flag, err)
			}
			*list.to = append(*list.to, grant)
		}
	}
	return natsaccess.New(roles)
}
