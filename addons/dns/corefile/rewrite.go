package corefile

import (
	"regexp"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

const (
	maxRewrites = 500 // of a server block
	maxRegex    = 1000
)

// rewrite reads rules on one line, and with their parts in braces.
func (r *reader) rewrite(s *Server, d directive) {
	words := slices.Clone(d.words[1:])
	for _, o := range d.options {
		words = append(words, o.words...)
	}
	var rule Rewrite
	if len(words) > 0 && (words[0] == "continue" || words[0] == "stop") {
		rule.Continue = words[0] == "continue"
		words = words[1:]
	}
	if len(words) == 0 || words[0] != "name" {
		r.problem(d, "only rules of names are supported; the rule is left out")
		return
	}
	words = words[1:]
	rule.Match = "exact"
	if len(words) > 2 {
		rule.Match, words = words[0], words[1:]
	}
	if len(words) < 2 || !slices.Contains([]string{"exact", "prefix", "suffix", "substring", "regex"}, rule.Match) {
		r.problem(d, "exact, prefix, suffix, substring or regex, and what becomes what, is wanted; the rule is left out")
		return
	}
	rule.From, rule.To = words[0], words[1]
	if !r.match(&rule, d) || !r.answers(&rule, d, words[2:]) {
		return
	}
	if len(s.Rewrites) == maxRewrites {
		r.problem(d, "more than %d rules; the rule is left out", maxRewrites)
		return
	}
	s.Rewrites = append(s.Rewrites, rule)
}

// match makes names canonical, as those of questions are.
func (r *reader) match(rule *Rewrite, d directive) (ok bool) {
	switch rule.Match {
	case "exact":
		rule.From, rule.To, rule.Auto = dns.CanonicalName(rule.From), dns.CanonicalName(rule.To), true
	case "suffix":
		rule.From, rule.To = dns.CanonicalName(rule.From), dns.CanonicalName(rule.To)
	case "prefix", "substring":
		rule.From, rule.To = strings.ToLower(rule.From), strings.ToLower(rule.To)
		if rule.From == "" {
			r.problem(d, "the name to look for is empty; the rule is left out")
			return false
		}
	case "regex":
		rule.Regex, ok = r.regex(d, rule.From)
		return ok
	}
	return true
}

func (r *reader) regex(d directive, text string) (*regexp.Regexp, bool) {
	if len(text) > maxRegex {
		r.problem(d, "the regular expression is longer than %d characters; the rule is left out", maxRegex)
		return nil, false
	}
	re, err := regexp.Compile(text)
	if err != nil {
		r.problem(d, "%s; the rule is left out", err)
	}
	return re, err == nil
}

// answers reads [answer] auto, and [answer] name|value FROM TO, any number of times.
func (r *reader) answers(rule *Rewrite, d directive, words []string) bool {
	for len(words) > 0 {
		if words[0] == "answer" && len(words) > 1 {
			words = words[1:]
		}
		if words[0] == "name" && len(words) > 1 && words[1] == "auto" {
			words = words[1:]
		}
		switch {
		case words[0] == "auto":
			rule.Auto, words = true, words[1:]
		case (words[0] == "name" || words[0] == "value") && len(words) > 2:
			re, ok := r.regex(d, words[1])
			if !ok {
				return false
			}
			rule.Answers = append(rule.Answers, AnswerRule{words[0] == "value", re, words[2]})
			words = words[3:]
		default:
			r.problem(d, "answer auto, or answer name or value and what becomes what, is wanted, not %q; the rule is left out", words[0])
			return false
		}
	}
	return true
}
