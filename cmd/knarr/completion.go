package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"knarr/cluster/apiflags"
	"knarr/cluster/controllerflags"
	"knarr/cluster/dev"
	"knarr/cluster/kubeletflags"
	"knarr/cluster/proxyflags"
	"knarr/cluster/schedulerflags"
	"knarr/internal/flaghelp"
)

// completion prints a script that asks complete.
func completion(*pflag.FlagSet) runner {
	return func(_ context.Context, args []string) error {
		if len(args) != 1 {
			return errors.New("completion needs the name of one shell: bash, zsh or fish")
		}
		root := tree()
		switch args[0] {
		case "bash":
			fmt.Print(plainBash)
			return root.GenBashCompletionV2(os.Stdout, true)
		case "zsh":
			return root.GenZshCompletion(os.Stdout)
		case "fish":
			return root.GenFishCompletion(os.Stdout, true)
		}
		return fmt.Errorf("completion knows no shell %q; it knows bash, zsh and fish", args[0])
	}
}

// plainBash splits the line where bash-completion, which would, is missing.
const plainBash = `declare -F _get_comp_words_by_ref >/dev/null || _get_comp_words_by_ref() {
    local line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    cword=$((${#words[@]} - 1)) cur=${words[-1]} prev=${words[-2]}
}
`

// complete answers what may follow on a command line. kubectl answers for its
// own: it is asked in the same way.
func complete(ctx context.Context, args []string) error {
	if len(args) > 2 && args[1] == "kubectl" {
		return kubectl(ctx, append(args[:1:1], args[2:]...))
	}
	root := tree()
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// tree is the table of verbs as the library that completes wants it.
func tree() *cobra.Command {
	root := &cobra.Command{Use: "knarr", SilenceErrors: true, SilenceUsage: true}
	root.CompletionOptions.DisableDefaultCmd = true
	for _, v := range commands() {
		c := &cobra.Command{Use: v.name, Short: v.help, Run: func(*cobra.Command, []string) {}, ValidArgsFunction: v.arguments}
		c.Flags().AddFlagSet(v.declared())
		c.Flags().VisitAll(func(f *pflag.Flag) {
			unit, usage := pflag.UnquoteUsage(f)
			f.Usage = usage
			// The one error is that a flag has such a function already.
			_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
				if v.name == "images" && f.Name == "node" {
					flaghelp.Values(c.Flags(), f.Name, nodeNames(c)...)
				}
				return flagValues(f, unit, typed)
			})
		})
		root.AddCommand(c)
	}
	return root
}

// arguments are what may follow the verb besides flags.
func (v verb) arguments(c *cobra.Command, before []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(before) == 0 && len(v.words) > 0:
		var all []string
		for _, w := range v.words {
			all = append(all, w.name+"\t"+w.help)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	case v.name == "man" && len(before) == 0:
		return nil, cobra.ShellCompDirectiveFilterDirs
	case v.name == "images" && len(before) > 0 && before[0] == "load":
		return nil, cobra.ShellCompDirectiveDefault
	case v.name == "images" && len(before) > 0 && before[0] == "rm":
		return imageNames(c.Context(), c.Flag("data-dir").Value.String(), before[1:]), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// imageNames are the images of this node that are not named yet.
func imageNames(ctx context.Context, dir string, named []string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := imagesIn(ctx, dir)
	if err != nil {
		return nil // there is nothing to offer
	}
	for _, i := range list {
		for _, name := range i.Names {
			if !slices.Contains(named, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// nodeNames are the nodes of the dev cluster that a command line names.
func nodeNames(c *cobra.Command) (names []string) {
	cluster, err := dev.Open(c.Flag("dir").Value.String(), c.Flag("name").Value.String())
	if err != nil {
		return nil
	}
	nodes, err := cluster.NodeDirs()
	if err != nil {
		return nil
	}
	for _, n := range nodes {
		names = append(names, n.Node)
	}
	return names
}

// keysOf are what flags of the form key=value know.
var keysOf = map[string]func() []string{
	"kube-apiserver-arg": apiflags.Keys, "kube-controller-manager-arg": controllerflags.Keys, "kube-scheduler-arg": schedulerflags.Keys,
	"kube-proxy-arg": proxyflags.Keys, "kubelet-arg": kubeletflags.Keys,
}

// flagValues are what a flag may be set to: what is known of its values, or
// else what its unit says.
func flagValues(f *pflag.Flag, unit, typed string) ([]string, cobra.ShellCompDirective) {
	if of, ok := keysOf[f.Name]; ok {
		keys := of()
		for i := range keys {
			keys[i] += "="
		}
		return keys, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	if known := flaghelp.ValuesOf(f); len(known) > 0 {
		how := cobra.ShellCompDirectiveNoFileComp
		if f.Value.Type() != "stringSlice" {
			return known, how
		}
		first := typed[:strings.LastIndex(typed, ",")+1]
		var all []string
		for _, one := range known {
			if !slices.Contains(strings.Split(first, ","), one) {
				all = append(all, first+one)
			}
		}
		return all, how
	}
	switch unit {
	case "file", "files", "socket":
		return nil, cobra.ShellCompDirectiveDefault
	case "directory":
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
