package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

// startPrometheus starts it where it is installed, with our rules.
func (c *cluster) startPrometheus(ctx context.Context) error {
	if c.config.Prometheus == "" {
		c.story.Say("Prometheus is not installed; it would watch all of this (scripts/deps.sh prometheus).")
		return nil
	}
	config, err := c.deploy.block("# /etc/prometheus/prometheus.yml")
	if err != nil {
		return err
	}
	rules := filepath.Join(c.config.Repository, "deploy", "prometheus", "rules.yml")
	config = strings.Replace(c.place(config), "/etc/prometheus/rules.yml", rules, 1)
	file, listen := c.dir.Servers("prometheus.yml"), c.net+"1:9090"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return fmt.Errorf("configure Prometheus: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.config.Prometheus, "--config.file="+file,
		"--storage.tsdb.path="+c.dir.Servers("prometheus"), "--web.listen-address="+listen)
	cmd.Env = demokit.Environment()
	child, err := demokit.StartChild("prometheus", c.dir.Log("prometheus"), cmd)
	if err != nil {
		return err
	}
	c.story.OnStop(child.Stop)
	c.prometheus = "http://" + listen
	c.story.Say("Prometheus, with the rules of deploy/prometheus: %s", c.story.Paint(demokit.Bold, c.prometheus+"/alerts"))
	return nil
}

// series is an answer of Prometheus to a query.
type series struct {
	Data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
		} `json:"result"`
	} `json:"data"`
}

func (c *cluster) query(ctx context.Context, text string) (*series, error) {
	var found series
	err := ask(ctx, c.prometheus+"/api/v1/query?query="+url.QueryEscape(text), &found)
	return &found, err
}

// askPrometheus waits until it knows of all nodes, and says what its rules made of the faults.
func (c *cluster) askPrometheus(ctx context.Context) error {
	if c.prometheus == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		up, err := c.query(ctx, `up{job="tranche"} == 1`)
		if err == nil && len(up.Data.Result) == machines {
			break
		}
		if err := backoff.Sleep(ctx, askEvery); err != nil {
			return fmt.Errorf("wait until Prometheus has asked every node: %w", err)
		}
	}
	rung, err := c.query(ctx, `count by (alertname) (max_over_time(ALERTS[10m]))`)
	if err != nil {
		return fmt.Errorf("ask Prometheus for alerts: %w", err)
	}
	var names []string
	for _, one := range rung.Data.Result {
		names = append(names, one.Metric["alertname"])
	}
	c.story.Say("Prometheus asks all three nodes. Alerts that were pending or rang: %s.",
		strings.Join(append(names, "no other"), ", "))
	return nil
}
