package main

import (
	"context"

	"github.com/spf13/pflag"

	"knarr/cluster/alone"
)

// A verb is one subcommand. Help, completion and manual pages are made from it.
type verb struct {
	name, help string
	args       string   // what follows the name
	words      []word   // what its first argument may be
	more       string   // a paragraph of its help
	examples   []string // command lines
	bind       bind
	raw        runner // takes its arguments as they are, in place of bind
}

// bind declares a verb's flags and gives what runs it when they are read.
type bind func(*pflag.FlagSet) runner

// A runner runs a verb with what is left of the command line.
type runner func(ctx context.Context, args []string) error

// A word is what an argument may be.
type word struct{ name, help string }

// verbs in the order help shows them.
func verbs() []verb {
	return []verb{
		{name: "server", help: "run a cluster on this machine", bind: server,
			more: "It stays in the foreground; interrupted, it leaves the containers running, and the next start takes them over. " +
				"By SIGHUP it ends in order too, but clients of its ports wait for the next start instead of being refused: so is it replaced by a newer one. " +
				"Each flag may be a key of /etc/knarr/config.yaml too.",
			examples: []string{"knarr server", "knarr server --tls-san knarr.example.com --disable coredns", "knarr server --server https://first:6443 --token TOKEN"}},
		{name: "agent", help: "run a node of another machine's cluster on this one", bind: agent,
			more:     "knarr token on the server prints the token. Each flag may be a key of /etc/knarr/config.yaml too.",
			examples: []string{"knarr agent --server https://server:6443 --token TOKEN"}},
		{name: "token", help: "print what agents join this machine's server with", bind: token,
			examples: []string{"knarr token", "knarr token --servers"}},
		{name: "dev", help: "run clusters of several nodes on this one machine", args: "up|down|ls [-- SERVER-FLAGS]", bind: devCluster,
			words: []word{{"up", "start a cluster, or what of it does not run"}, {"down", "remove a cluster"}, {"ls", "list the clusters of this machine"}},
			more:  "What follows -- are flags of knarr server.",
			examples: []string{"knarr dev up --nodes 3 --servers 3", "knarr dev up --name second -- --disable coredns",
				"knarr dev ls", "knarr dev down"}},
		{name: "wait", help: "wait until the cluster of this machine's server is ready", bind: wait,
			more:     "Ready is a Ready node and, unless coredns is disabled, a DNS that answers.",
			examples: []string{"knarr wait --timeout 30s"}},
		{name: "down", help: "stop a cluster and remove every trace of its containers and network", bind: down,
			examples: []string{"knarr down", "knarr down --purge"}},
		{name: "kubectl", help: "run the official kubectl, pointed at this machine's cluster", args: "ARGUMENTS", raw: kubectl,
			more:     "A KUBECONFIG or a ~/.kube/config comes first. A link named kubectl to knarr is the same.",
			examples: []string{"knarr kubectl get pods --all-namespaces"}},
		{name: "images", help: "load, pull, list and remove container images of this node", args: "load FILE...|pull NAME...|ls|rm NAME...", bind: images,
			words: []word{{"load", "load OCI or docker-save archives"}, {"pull", "pull images, by the mirrors and credentials of registries.yaml"}, {"ls", "list the images, and those that are being pulled"}, {"rm", "remove images"}},
			examples: []string{"knarr images load hello.tar", "knarr images load hello.tar --all-nodes",
				"knarr images pull registry.k8s.io/pause:3.10",
				"knarr images ls -o wide", "knarr images rm knarr.test/hello:1"}},
		{name: "check", help: "say what this host lacks, and what is wrong with the settings", bind: check,
			more: "It starts nothing, and ends with code 1 if a server cannot run here, or would not start with these flags and files. " +
				"They are those of knarr server; what an agent is given is among them.",
			examples: []string{"knarr check", "knarr check --kubelet-config kubelet.yaml --private-registry registries.yaml"}},
		{name: "ingress-report", help: "say what would change for a cluster's Ingresses in a move from ingress-nginx", bind: ingressReport,
			more:     "It reads the cluster of the kubeconfig, and changes nothing there.",
			examples: []string{"knarr ingress-report --kubeconfig ~/.kube/config"}},
		{name: "completion", help: "print what makes a shell complete knarr's command lines", args: "bash|zsh|fish", bind: completion,
			words: []word{{"bash", "a script for bash"}, {"zsh", "a script for zsh"}, {"fish", "a script for fish"}},
			more:  "What follows knarr kubectl is completed by kubectl, from the cluster.",
			examples: []string{"source <(knarr completion bash)", "knarr completion bash >/usr/share/bash-completion/completions/knarr",
				`knarr completion zsh >"${fpath[1]}/_knarr"`, "knarr completion fish >~/.config/fish/completions/knarr.fish"}},
		{name: "man", help: "write the manual pages to a directory", args: "DIRECTORY", bind: man,
			examples: []string{"knarr man /usr/local/share/man/man1 && man knarr-server"}},
		{name: "version", help: "print the version", bind: printVersion,
			examples: []string{"knarr version"}},
	}
}

// components are the verbs that run one component alone.
func components() []verb {
	var all []verb
	for _, c := range alone.Components {
		all = append(all, verb{name: c.Name, help: c.Help, bind: runAlone(c),
			more: "The flags have upstream's names. A link to knarr that is named as upstream's program is the same."})
	}
	return all
}

// commands are all of them.
func commands() []verb { return append(verbs(), components()...) }

// find gives the verb of a name.
func find(name string) (verb, bool) {
	for _, v := range commands() {
		if v.name == name {
			return v, true
		}
	}
	return verb{}, false
}
