package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"knarr/internal/flaghelp"
)

// help describes one verb, or lists them all.
func help(args []string) error {
	switch len(args) {
	case 0:
		usage(os.Stdout)
		return nil
	case 1:
		v, known := find(args[0])
		if !known {
			return noCommand(args[0])
		}
		v.usage(os.Stdout)
		return nil
	}
	return fmt.Errorf("help takes one command, not %q too", args[1])
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "knarr is a whole Kubernetes in one program.\n\nUsage: knarr COMMAND [flags]\n\nCommands:")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  %-10s %s\n", v.name, v.help)
	}
	fmt.Fprintln(w, "\nComponents alone, with upstream's flags:")
	for _, v := range components() {
		fmt.Fprintf(w, "  %-18s %s\n", v.name, v.help)
	}
	fmt.Fprintln(w, "\nknarr COMMAND --help tells more of each.")
}

// declared are the verb's flags, to be described, not read.
func (v verb) declared() *pflag.FlagSet {
	f := pflag.NewFlagSet(v.name, pflag.ContinueOnError)
	if v.bind != nil {
		v.bind(f)
	}
	return f
}

// synopsis is the verb's form.
func (v verb) synopsis() string {
	s := "knarr " + v.name
	if v.args != "" {
		s += " " + v.args
	}
	if v.declared().HasFlags() {
		s += " [flags]"
	}
	return s
}

// purpose is what the verb is for, in sentences.
func (v verb) purpose() string {
	s := strings.ToUpper(v.help[:1]) + v.help[1:] + "."
	if v.more != "" {
		s += " " + v.more
	}
	return s
}

func (v verb) usage(w io.Writer) {
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", v.synopsis(), v.purpose())
	for i, one := range v.words {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "  %-6s %s\n", one.name, one.help)
	}
	if len(v.examples) > 0 {
		fmt.Fprintln(w, "\nExamples:")
	}
	for _, line := range v.examples {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, s := range flaghelp.Sections(v.declared()) {
		fmt.Fprintf(w, "\n%s:\n%s", s.Title, s.Flags.FlagUsagesWrapped(columns(w)))
	}
	fmt.Fprintln(w, "\nknarr help lists all commands; knarr man DIRECTORY writes manual pages.")
}

// columns is how wide the terminal is; 0 is no terminal.
func columns(w io.Writer) int {
	file, is := w.(*os.File)
	if !is {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
