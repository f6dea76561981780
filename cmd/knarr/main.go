// Command knarr is a whole Kubernetes in one program. It reads its command
// line, and hands over to the package of the verb.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"knarr/cluster/alone"
)

// A verb is one subcommand.
type verb struct {
	name, help string
	run        func(ctx context.Context, args []string) error
}

// verbs in the order help shows them.
var verbs = []verb{
	{"server", "run a cluster on this machine", server},
	{"agent", "run a node of another machine's cluster on this one", agent},
	{"token", "print what agents join this machine's server with", token},
	{"dev", "clusters of several nodes on this one machine: up, down, ls", devCluster},
	{"wait", "wait until this machine's cluster is ready", wait},
	{"down", "stop a cluster and remove every trace of its containers and network", down},
	{"kubectl", "the official kubectl, pointed at this machine's cluster", kubectl},
	{"images", "load, list and remove container images of this node", images},
	{"check", "say what this host lacks, and what follows from it", check},
	{"version", "print the version", printVersion},
}

func main() {
	args := os.Args[1:]
	if as := command(filepath.Base(os.Args[0])); as != "" {
		args = append([]string{as}, args...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, args); err != nil {
		if !errors.Is(err, errSilent) {
			fmt.Fprintln(os.Stderr, "knarr:", oneLine(err))
		}
		os.Exit(1)
	}
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

// errSilent ends with code 1 when everything has been said.
var errSilent = errors.New("")

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		usage(os.Stderr)
		return errSilent
	}
	switch args[0] {
	case "-h", "--help", "help":
		usage(os.Stdout)
		return nil
	case "-v", "--version":
		args[0] = "version"
	}
	for _, v := range verbs {
		if v.name == args[0] {
			return v.run(ctx, args[1:])
		}
	}
	for _, c := range alone.Components {
		if c.Name == args[0] {
			return runAlone(ctx, c, args[1:])
		}
	}
	return fmt.Errorf("there is no command %q; knarr help lists them", args[0])
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "knarr is a whole Kubernetes in one program.\n\nUsage: knarr COMMAND [flags]\n\nCommands:")
	for _, v := range verbs {
		fmt.Fprintf(w, "  %-9s %s\n", v.name, v.help)
	}
	fmt.Fprintln(w, "\nComponents alone, with upstream's flags:")
	for _, c := range alone.Components {
		fmt.Fprintf(w, "  %-18s %s\n", c.Name, c.Help)
	}
	fmt.Fprintln(w, "\nknarr COMMAND --help tells more of each.")
}

// oneLine joins the faults of a joined error.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
