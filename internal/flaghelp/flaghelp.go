// Package flaghelp keeps with a flag what its type does not say: the group that
// help shows it in, and the values it takes. It reads and writes the flags'
// annotations, which help, completion and manual pages are made from.
package flaghelp

import "github.com/spf13/pflag"

const (
	group  = "knarr/group"
	values = "knarr/values"
)

// Group gives a title to the flags that were declared since the last call.
func Group(f *pflag.FlagSet, title string) {
	f.VisitAll(func(one *pflag.Flag) {
		if one.Annotations[group] == nil {
			note(one, group, title)
		}
	})
}

// In puts one flag in a group of its own choice.
func In(f *pflag.FlagSet, name, title string) { note(f.Lookup(name), group, title) }

// Values says what a flag takes.
func Values(f *pflag.FlagSet, name string, all ...string) { note(f.Lookup(name), values, all...) }

func note(f *pflag.Flag, key string, what ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = what
}

// ValuesOf is the result of Values.
func ValuesOf(f *pflag.Flag) []string { return f.Annotations[values] }

// A Section is the flags of one group.
type Section struct {
	Title string
	Flags *pflag.FlagSet
}

// Sections are the groups of f, in the order in which their first flags were
// declared.
func Sections(f *pflag.FlagSet) []Section {
	f.SortFlags = false
	var all []Section
	at := map[string]int{}
	f.VisitAll(func(one *pflag.Flag) {
		if one.Hidden {
			return
		}
		title := "Flags"
		if t := one.Annotations[group]; t != nil {
			title = t[0]
		}
		i, known := at[title]
		if !known {
			i = len(all)
			at[title] = i
			all = append(all, Section{title, pflag.NewFlagSet(title, pflag.ContinueOnError)})
			all[i].Flags.SortFlags = false
		}
		all[i].Flags.AddFlag(one)
	})
	return all
}
