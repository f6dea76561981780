package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"knarr/cluster"
	"knarr/internal/footprint"
	"knarr/internal/run"
	"knarr/internal/version"
)

func server(f *pflag.FlagSet) runner {
	var o cluster.Options
	o.Flags(f)
	return func(ctx context.Context, _ []string) error {
		if err := errors.Join(o.Load(f), o.Validate()); err != nil {
			return err
		}
		setLog(ctx, o.LogFormat, o.Debug)
		smallHeap()
		return cluster.NewServer(o).Run(ctx)
	}
}

func agent(f *pflag.FlagSet) runner {
	var o cluster.AgentOptions
	o.Flags(f)
	return func(ctx context.Context, _ []string) error {
		if err := errors.Join(o.Load(f), o.Validate()); err != nil {
			return err
		}
		setLog(ctx, o.LogFormat, o.Debug)
		smallHeap()
		return cluster.NewAgent(o).Run(ctx)
	}
}

func token(f *pflag.FlagSet) runner {
	dir := f.StringP("data-dir", "d", cluster.DefaultDataDir, "`directory` of the server")
	servers := f.Bool("servers", false, "the token that further servers join with; it is worth the cluster's keys")
	return func(context.Context, []string) error {
		token, err := cluster.Token(*dir, *servers)
		if err == nil {
			fmt.Println(token)
		}
		return err
	}
}

// smallHeap paces garbage collection.
func smallHeap() {
	footprint.Pace(footprint.Room, func() { _, _ = footprint.Trim() }) // what it cannot give back stays
}

// setLog sends all logs, the libraries' too, to stderr; the last of a process that
// is told to end says by what.
func setLog(ctx context.Context, format string, verbose bool) {
	logAs(format, verbose)
	surviveLibraries()
	context.AfterFunc(ctx, func() {
		if by, ok := errors.AsType[signalled](context.Cause(ctx)); ok {
			slog.Info("ending", "signal", by.String())
		}
	})
}

// logLevel is how much is logged, which may change while the process runs.
var logLevel slog.LevelVar

func logMore(verbose bool) {
	if logLevel.Set(slog.LevelInfo); verbose {
		logLevel.Set(slog.LevelDebug)
	}
}

func logAs(format string, verbose bool) {
	logMore(verbose)
	opts := &slog.HandlerOptions{Level: &logLevel}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, opts)
	if format == "json" {
		h = slog.NewJSONHandler(os.Stderr, opts)
	}
	slog.SetDefault(slog.New(h))
	klog.SetSlogLogger(slog.New(atLeast{h, slog.LevelWarn}))
}

// surviveLibraries keeps a panic in a library's goroutine from ending every
// component of the process: client-go logs it and would then let it go on.
func surviveLibraries() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) { run.CountPanic("library") })
}

// atLeast drops what libraries say below a level.
type atLeast struct {
	slog.Handler
	level slog.Level
}

// noise are errors that libraries log when a client hangs up, which is no
// fault of anybody's.
var noise = []string{"Error on socket receive", "Error proxying data", "Unable to upgrade websocket"}

func (a atLeast) Handle(ctx context.Context, r slog.Record) error {
	for _, n := range noise {
		if strings.HasPrefix(r.Message, n) {
			return nil
		}
	}
	return a.Handler.Handle(ctx, r)
}

func (a atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= a.level && a.Handler.Enabled(ctx, l)
}

func down(f *pflag.FlagSet) runner {
	dir := f.StringP("data-dir", "d", cluster.DefaultDataDir, "`directory` of the cluster")
	purge := f.Bool("purge", false, "remove the cluster's data too")
	leave := f.Bool("leave", true, "with --purge on one of several servers: tell the others that it is gone for good")
	return func(ctx context.Context, _ []string) error {
		done, err := cluster.Down(ctx, *dir, *purge, *leave)
		if err == nil {
			fmt.Println(done)
		}
		return err
	}
}

func wait(f *pflag.FlagSet) runner {
	dir := f.StringP("data-dir", "d", cluster.DefaultDataDir, "`directory` of the cluster")
	domain := f.String("cluster-domain", "", "`domain` of names in the cluster (default: the server's)")
	limit := f.Duration("timeout", time.Minute, "the longest `time` to wait")
	return func(ctx context.Context, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		return cluster.Wait(ctx, *dir, *domain)
	}
}

func kubectl(ctx context.Context, args []string) error {
	path, env, err := cluster.Kubectl()
	if err != nil {
		return err
	}
	signal.Reset()
	if ctx.Err() != nil { // a signal that came before this program is kubectl, which would never know
		return context.Cause(ctx)
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, append([]string{"kubectl"}, args...), env))
}

func ingressReport(f *pflag.FlagSet) runner {
	dir := f.StringP("data-dir", "d", cluster.DefaultDataDir, "`directory` of the cluster")
	kubeconfig := f.String("kubeconfig", "", "kubeconfig `file` of another cluster (default: that of --data-dir)")
	return func(ctx context.Context, _ []string) error {
		return cluster.IngressReport(ctx, *dir, *kubeconfig, os.Stdout)
	}
}

func check(f *pflag.FlagSet) runner {
	var o cluster.Options
	o.Flags(f)
	const agents = "discovery-token-unsafe-skip-ca-verification" // the one flag that only agents have, and so their files
	f.Bool(agents, false, "as of an agent")
	f.Lookup(agents).Hidden = true
	return func(context.Context, []string) error {
		settings := cluster.CheckSettings(os.Stdout, errors.Join(o.Load(f), o.Validate()))
		if host := cluster.Check(os.Stdout); !host || !settings {
			return errNoMessage
		}
		return nil
	}
}

func printVersion(*pflag.FlagSet) runner {
	return func(context.Context, []string) error {
		fmt.Printf("knarr %s (%s)\nKubernetes %s\n%s %s/%s\n", version.Version, version.Commit, version.Kubernetes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return nil
	}
}
