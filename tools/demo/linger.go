package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

// end says what is left, and keeps everything running when that is wanted.
func (d *demo) end(ctx context.Context) error {
	d.story.Say("\nThe whole demo took %.0f s. The statements are in", time.Since(d.began).Seconds())
	d.story.Say("  %s", d.dir.Path)
	if !d.config.Keep && d.config.Enter == nil {
		d.story.Say("The bank and the servers are gone now; tranche demo --keep leaves them running.")
		return nil
	}
	if err := d.invite(ctx); err != nil {
		return err
	}
	if d.config.Keep {
		d.story.Say("Ctrl-C ends it all.")
		return d.linger(ctx, nil)
	}
	d.story.Say("Enter ends it all.")
	return d.linger(ctx, enter(d.config.Enter))
}

// invite says what there is to see and to do.
func (d *demo) invite(ctx context.Context) error {
	account := d.fifty()[2]
	breaks, mends, err := d.bank.TryYourself(ctx, account)
	if err != nil {
		return err
	}
	psql := fmt.Sprintf("psql '%s' \\", d.postgres.URLFor(bankdata.Branches))
	d.story.Chapter("Your turn: everything still runs")
	d.story.Say("The dashboard, where each account is a pixel:\n  %s", d.story.Paint(demokit.Bold, d.server.API))
	d.story.Say("Break account %d in another terminal:", account)
	d.story.Command(psql, `-c "`+breaks+`"`)
	d.story.Say("Find it on the run's page, by its key, and reset its part %s. Then mend it,", bankdata.Branches)
	d.story.Command(psql, `-c "`+mends+`"`)
	d.story.Say("and reset the part once more, there or here; sending it again wants a word again:")
	d.story.Command("export TRANCHE_URL=" + d.server.API)
	d.story.Command(fmt.Sprintf("tranche run reset last --step %s --key %d --wait --on-hold exit", bankdata.Branches,
		account))
	d.story.Command("tranche run approve last --step " + stepSend)
	return nil
}

// linger waits for the person, or for the server to fail.
func (d *demo) linger(ctx context.Context, entered <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil // as asked
	case <-entered:
		return nil
	case <-d.server.Exited():
		return d.server.Failure()
	}
}

// enter returns a channel that is closed when a line has come from r. An end of r is none: nobody has typed it.
func enter(r io.Reader) <-chan struct{} {
	entered := make(chan struct{})
	go func() {
		if _, err := bufio.NewReader(r).ReadString('\n'); err == nil {
			close(entered)
		}
	}()
	return entered
}
