package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"knarr/internal/flaghelp"
	"knarr/internal/version"
)

// man writes a page for knarr and one for each verb.
func man(*pflag.FlagSet) runner {
	return func(_ context.Context, args []string) error {
		if len(args) != 1 {
			return errors.New("man needs one directory to write the pages to, such as /usr/local/share/man/man1")
		}
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return fmt.Errorf("make the directory of the pages: %w", err)
		}
		pages := map[string][]byte{"knarr": overview()}
		for _, v := range commands() {
			pages["knarr-"+v.name] = v.page()
		}
		for name, text := range pages {
			if err := os.WriteFile(filepath.Join(args[0], name+".1"), text, 0o644); err != nil {
				return fmt.Errorf("write a page: %w", err)
			}
		}
		return nil
	}
}

// A roff is a manual page in the making.
type roff struct{ bytes.Buffer }

// line is one macro with its arguments.
func (r *roff) line(macro string, args ...string) {
	fmt.Fprint(r, ".", macro)
	for _, a := range args {
		fmt.Fprintf(r, ` "%s"`, strings.ReplaceAll(escape(a), `"`, `\(dq`))
	}
	fmt.Fprintln(r)
}

// text is a paragraph's line.
func (r *roff) text(s string) {
	s = escape(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	fmt.Fprintln(r, s)
}

// escaper keeps what is typed as it is typed: roff would make typographic signs of it.
var escaper = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "…", "...")

func escape(s string) string { return escaper.Replace(s) }

func (r *roff) title(name, help string) {
	r.line("TH", strings.ToUpper(name), "1", "", "knarr, Kubernetes "+version.Kubernetes, "knarr")
	r.line("SH", "NAME")
	r.text(name + " - " + help)
	r.line("SH", "SYNOPSIS")
}

// items are what has a name and an explanation each.
func (r *roff) items(prefix string, all []verb) {
	for _, v := range all {
		r.line("TP")
		r.line("B", prefix+v.name)
		r.text(v.help)
	}
}

func overview() []byte {
	var r roff
	r.title("knarr", "a whole Kubernetes in one program")
	r.text("knarr COMMAND [flags]")
	r.line("SH", "COMMANDS")
	r.items("knarr ", verbs())
	r.line("SH", "COMPONENTS")
	r.text("Each component runs alone too, with upstream's flags.")
	r.items("knarr ", components())
	r.line("SH", "FILES")
	r.line("TP")
	r.line("I", "/etc/knarr/config.yaml")
	r.text("flags of knarr server and knarr agent, as keys")
	r.line("TP")
	r.line("I", "/etc/knarr/registries.yaml")
	r.text("mirrors, credentials and TLS of the registries that images are fetched from")
	r.line("TP")
	r.line("I", "/var/lib/knarr")
	r.text("the cluster; kubeconfig in it is the administrator's")
	r.line("SH", "SEE ALSO")
	for i, v := range commands() {
		after := "(1),"
		if i == len(commands())-1 {
			after = "(1)"
		}
		r.line("BR", "knarr-"+v.name, after)
	}
	return r.Bytes()
}

func (v verb) page() []byte {
	var r roff
	r.title("knarr-"+v.name, v.help)
	r.text(v.synopsis())
	r.line("SH", "DESCRIPTION")
	r.text(v.purpose())
	if len(v.words) > 0 {
		r.line("SH", "ARGUMENTS")
	}
	for _, w := range v.words {
		r.line("TP")
		r.line("B", w.name)
		r.text(w.help)
	}
	for _, s := range flaghelp.Sections(v.declared()) {
		r.line("SH", strings.ToUpper(s.Title))
		s.Flags.VisitAll(r.flag)
	}
	if len(v.examples) > 0 {
		r.line("SH", "EXAMPLES")
	}
	for i, e := range v.examples {
		if i > 0 {
			r.line("br")
		}
		r.line("B", e)
	}
	r.line("SH", "SEE ALSO")
	r.line("BR", "knarr", "(1)")
	return r.Bytes()
}

// flag describes one flag.
func (r *roff) flag(f *pflag.Flag) {
	unit, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" && f.Shorthand != f.Name {
		name = "-" + f.Shorthand + ", " + name
	}
	r.line("TP")
	if unit == "" {
		r.line("B", name)
	} else {
		r.line("BI", name+" ", unit)
	}
	switch f.DefValue {
	case "", "false", "0", "0s", "[]", "<nil>":
	default:
		usage += fmt.Sprintf(" (default %s)", f.DefValue)
	}
	r.text(usage)
}
