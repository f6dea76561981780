// Command knarr is a whole Kubernetes in one program. It reads its command
// line, and hands over to the package of the verb.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	_ "time/tzdata" // time zones of CronJobs, where the host has none

	"github.com/spf13/pflag"

	"knarr/cluster"
	"knarr/cluster/alone"
	"knarr/internal/nearest"
	"knarr/internal/run"
)

func main() {
	args := os.Args[1:]
	if as := command(filepath.Base(os.Args[0])); as != "" {
		args = append([]string{as}, args...)
	}
	ctx, stop := untilSignal()
	defer stop()
	if err := dispatch(ctx, args); err != nil {
		if !errors.Is(err, errNoMessage) {
			fmt.Fprintln(os.Stderr, "knarr:", oneLine(err))
		}
		os.Exit(1)
	}
}

// A signalled is why a context ended: somebody asked for it, which is no failure.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "signal: " + s.String() }

func (s signalled) Is(target error) bool {
	return target == context.Canceled || target == cluster.ErrReplaced && s.Signal == syscall.SIGHUP
}

// untilSignal is a context that ends with the first signal to end, which is its
// cause then. SIGHUP makes room for another process of knarr.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	run.Go("signals", func() {
		select {
		case s := <-signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
	})
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// command is what the program is when it is called by one of upstream's names.
func command(name string) string {
	if name == "kubectl" {
		return name
	}
	for _, c := range alone.Components {
		if name == c.Name || name == "kube-"+c.Name {
			return c.Name
		}
	}
	return ""
}

// errNoMessage ends with code 1 and prints nothing more.
var errNoMessage = errors.New("")

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		usage(os.Stderr)
		return errNoMessage
	}
	switch args[0] {
	case "-h", "--help", "help":
		return help(args[1:])
	case "-v", "--version":
		args[0] = "version"
	case "__complete", "__completeNoDesc": // what the scripts of completion call
		return complete(ctx, args)
	}
	v, known := find(args[0])
	if !known {
		return noCommand(args[0])
	}
	return v.run(ctx, args[1:])
}

// noCommand says that there is none of a name, and which may be meant.
func noCommand(name string) error {
	var names []string
	for _, v := range commands() {
		names = append(names, v.name)
	}
	return fmt.Errorf("there is no command %q%s knarr help lists them", name, cmp.Or(nearest.Hint(name, names), ";"))
}

// run reads the verb's flags and runs it.
func (v verb) run(ctx context.Context, args []string) error {
	if v.raw != nil {
		return v.raw(ctx, args)
	}
	f := pflag.NewFlagSet(v.name, pflag.ContinueOnError)
	f.Usage = func() {} // parse says ErrHelp too
	run := v.bind(f)
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		v.usage(os.Stdout)
		return nil
	case err != nil:
		return fmt.Errorf("%w%s knarr %s --help lists the flags", err, cmp.Or(flagHint(f, err), ";"), v.name)
	case v.args == "" && f.NArg() > 0:
		return fmt.Errorf("%s takes no argument %q; knarr %s --help lists the flags", v.name, f.Arg(0), v.name)
	}
	return run(ctx, f.Args())
}

// flagHint asks which flag is meant where one is not there; "" for another error.
func flagHint(f *pflag.FlagSet, err error) string {
	e, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(e.GetSpecifiedName()) == 1 {
		return ""
	}
	var names []string
	f.VisitAll(func(one *pflag.Flag) {
		if !one.Hidden {
			names = append(names, one.Name)
		}
	})
	if name := nearest.Name(e.GetSpecifiedName(), names); name != "" {
		return "; did you mean --" + name + "?"
	}
	return ""
}

// oneLine joins the faults of a joined error.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
