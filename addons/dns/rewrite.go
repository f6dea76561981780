package dns

import (
	"strings"
	"time"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// A revert changes the names of an answer, or those in its records' values.
type revert struct {
	value bool
	name  func(string) string
}

// rewrite is the question as the rules make it, and what changes the answer back,
// last rule first. Pure.
func rewrite(rules []corefile.Rewrite, key question, name string) (question, []revert) {
	var reverts []revert
	was := name
	for i := range rules {
		r := &rules[i]
		next, ok := apply(r, name)
		if !ok || next == "" {
			continue
		}
		next = dns.CanonicalName(next)
		if _, legal := dns.IsDomainName(next); !legal || len(next) > 254 {
			continue
		}
		reverts = append(revertsOf(r, name, next), reverts...)
		name = next
		if !r.Continue {
			break
		}
	}
	if name == was {
		return key, reverts
	}
	if next, ok := named(key, name); ok {
		return next, reverts
	}
	return key, nil
}

// apply is a name as a rule makes it; not ok: the rule is not for it.
func apply(r *corefile.Rewrite, name string) (string, bool) {
	switch r.Match {
	case "exact":
		return r.To, name == r.From
	case "prefix":
		rest, ok := strings.CutPrefix(name, r.From)
		return r.To + rest, ok
	case "suffix":
		rest, ok := strings.CutSuffix(name, r.From)
		return rest + r.To, ok
	case "substring":
		return strings.ReplaceAll(name, r.From, r.To), strings.Contains(name, r.From)
	case "regex":
		return expand(r.Regex.FindStringSubmatch(name), r.To)
	}
	return "", false
}

// expand puts what the parts of a regular expression matched into {1}, {2} and so on.
func expand(parts []string, to string) (string, bool) {
	if parts == nil {
		return "", false
	}
	for i, part := range parts {
		if to = strings.ReplaceAll(to, "{"+string(rune('0'+i))+"}", part); i == 9 || len(to) > 1024 {
			break
		}
	}
	return to, len(to) < 256
}

func revertsOf(r *corefile.Rewrite, was, is string) (reverts []revert) {
	if r.Auto && r.Match == "suffix" {
		reverts = append(reverts, revert{name: func(n string) string {
			if rest, ok := strings.CutSuffix(n, r.To); ok {
				return rest + r.From
			}
			return n
		}})
	} else if r.Auto {
		reverts = append(reverts, revert{name: func(n string) string {
			if n == is {
				return was
			}
			return n
		}})
	}
	for _, a := range r.Answers {
		reverts = append(reverts, revert{a.Value, func(n string) string {
			if next, ok := expand(a.From.FindStringSubmatch(n), a.To); ok {
				return dns.Fqdn(next)
			}
			return n
		}})
	}
	if reverts == nil { // the question is changed back in any case
		reverts = []revert{{name: func(n string) string { return n }}}
	}
	return reverts
}

// revert is an answer with the client's question, and its names changed back.
func (s *Server) revert(a *stored, srv *server, key question, reverts []revert) *stored {
	m := new(dns.Msg)
	if m.Unpack(a.wire) != nil {
		return s.failure(srv, key, dns.RcodeServerFailure)
	}
	m.Question = reply(key).Question
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			h.Name = changed(h.Name, reverts, false)
			for _, value := range values(rr) {
				*value = changed(*value, reverts, true)
			}
		}
	}
	out := s.pack(srv, key, m, a.source)
	if out.source == a.source {
		out.changes, out.change = a.changes, a.change
		out.began, out.until, out.keepTTL = a.began, a.until, a.keepTTL
		if a.source == fromForward && !time.Now().Before(a.until) {
			out.until = time.Time{}
		}
	}
	return out
}

func changed(name string, reverts []revert, value bool) string {
	next := strings.ToLower(name)
	for _, r := range reverts {
		if r.value == value {
			next = r.name(next)
		}
	}
	if _, ok := dns.IsDomainName(next); !ok || strings.EqualFold(next, name) {
		return name
	}
	return dns.Fqdn(next)
}

// values are the names in a record's value.
func values(rr dns.RR) []*string {
	switch rr := rr.(type) {
	case *dns.CNAME:
		return []*string{&rr.Target}
	case *dns.DNAME:
		return []*string{&rr.Target}
	case *dns.SRV:
		return []*string{&rr.Target}
	case *dns.MX:
		return []*string{&rr.Mx}
	case *dns.NS:
		return []*string{&rr.Ns}
	case *dns.PTR:
		return []*string{&rr.Ptr}
	case *dns.SOA:
		return []*string{&rr.Ns}
	case *dns.NAPTR:
		return []*string{&rr.Replacement}
	}
	return nil
}
