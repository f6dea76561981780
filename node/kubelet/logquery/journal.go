package logquery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// arguments are those of journalctl. Times are said in UTC: it would take them
// as the node's own otherwise.
func arguments(services []string, o Options) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	at := func(flag string, t *time.Time) {
		if t != nil {
			args = append(args, flag+t.UTC().Format("2006-01-02 15:04:05.999999 UTC"))
		}
	}
	at("--since=", o.SinceTime)
	at("--until=", o.UntilTime)
	if o.TailLines != nil {
		args = append(args, "--lines="+strconv.Itoa(*o.TailLines))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if o.Pattern != "" {
		args = append(args, "--grep="+o.Pattern)
	}
	if o.Boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*o.Boot))
	}
	return args
}

// split tells the services whose units are in the journal from the others,
// whose logs may be files. A node without a journal has files alone; of one that
// did not answer in time nothing is known.
func (h *handler) split(ctx context.Context, services []string) (units, others []string, err error) {
	known := map[string]bool{h.own: false}
	for _, s := range services {
		known[s], known[s+".service"] = false, false
	}
	err = h.journalctl(ctx, []string{"--field=_SYSTEMD_UNIT"}, func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if _, wanted := known[lines.Text()]; wanted && lines.Text() != "" {
				known[lines.Text()] = true
			}
		}
		return lines.Err()
	})
	if timedOut(ctx, err) {
		return nil, nil, errTime
	}
	for _, s := range services {
		switch {
		case err == nil && (known[s] || known[s+".service"]):
			units = append(units, s)
		case err == nil && s == "kubelet" && known[h.own]:
			units = append(units, h.own)
		default:
			others = append(others, s)
		}
	}
	return units, others, nil
}

// timedOut says whether the time was over, or the client gone, before journalctl
// had said all. What is read from it ends at the same moment as ctx, and may be
// seen to before.
func timedOut(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// journalctl runs it and has its output and its complaints read. It is gone
// when this returns: read to its end, or killed where reading ends before, or
// with ctx.
func (h *handler) journalctl(ctx context.Context, args []string, read func(io.Reader) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("run journalctl: %w", err)
	}
	defer r.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = r.SetReadDeadline(end) // what it started may hold the pipe when it is killed
	}
	c := exec.CommandContext(ctx, h.program, args...)
	c.Stdout, c.Stderr = w, w
	err = c.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("run journalctl: %w", err)
	}
	err = read(r)
	if err != nil {
		stop()
	}
	if wait := c.Wait(); err == nil {
		err = wait
	}
	return err
}

// copyUnits writes what the journal has of units. What journalctl complains of,
// such as a boot that it does not know, is part of the answer, in its words. An
// error is one that ends the answer.
func (h *handler) copyUnits(ctx context.Context, w io.Writer, units []string, o Options) error {
	var broken error
	err := h.journalctl(ctx, arguments(units, o), func(r io.Reader) error {
		_, broken = io.Copy(w, r)
		return broken
	})
	var exit *exec.ExitError
	switch {
	case timedOut(ctx, broken):
		return errTime
	case broken != nil:
		return broken
	case err != nil && !errors.As(err, &exit):
		return errors.New("journal output not available")
	}
	return nil
}
