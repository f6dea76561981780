package corefile

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// k3s is the configuration that k3s writes.
const k3s = `.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    hosts /etc/coredns/NodeHosts {
      ttl 60
      reload 15s
      fallthrough
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
    import /etc/coredns/custom/*.override
    forward . /etc/resolv.conf
}
import /etc/coredns/custom/*.server
`

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		files Files
		want  string // a server block in a line each
		wrong string // what the problems say, or the error
	}{
		"k3s": {Files{"Corefile": k3s, "/etc/coredns/NodeHosts": "10.0.0.1 node-1 # a node\n", "/etc/coredns/custom/a.override": "log\n", "/etc/coredns/custom/b.server": "corp.example:53 {\n forward . 10.1.1.1 10.1.1.2:5353 tls://10.1.1.3%dns.example\n}\n"},
			"[.] errors health ready kubernetes hosts prometheus cache loop reload loadbalance log forward\n[corp.example.] forward", ""},
		"snippet":    {Files{"Corefile": "(up) {\n forward . 1.1.1.1\n}\na.example b.example {\n import up\n}"}, "[a.example. b.example.] forward", ""},
		"reverse":    {Files{"Corefile": "10.1.0.0/16 fd00::/8 {\n errors }"}, "[1.10.in-addr.arpa. d.f.ip6.arpa.] errors", ""},
		"quotes":     {Files{"Corefile": ". { # comment\n rewrite name regex \"(a b)\\\"\" c\n}"}, "[.] rewrite", ""},
		"unknown":    {Files{"Corefile": ".:53 {\n errors\n template ANY A\n log\n}"}, "[.] errors log", "Corefile:3: template: this directive is not supported and is left out"},
		"autopath":   {Files{"Corefile": ". {\n autopath @kubernetes\n kubernetes c.local {\n  pods verified\n }\n}"}, "[.] autopath kubernetes", ""},
		"no pods":    {Files{"Corefile": ". {\n autopath @kubernetes\n kubernetes c.local\n}"}, "[.] autopath kubernetes", "Corefile:2: autopath: the directive kubernetes with the option \"pods verified\" is wanted in the same server block; without it no name is completed"},
		"no pod":     {Files{"Corefile": ". {\n autopath /etc/resolv.conf\n}"}, "[.] autopath", "Corefile:2: autopath: @kubernetes is wanted at its end; search lists of files are not completed"},
		"option":     {Files{"Corefile": ". {\n cache {\n  prefetch x\n  servfail 1h\n }\n}"}, "[.] cache", "Corefile:3: prefetch: a number from 0 to 1073741824 is wanted\nCorefile:4: servfail: a duration of at most 5m0s is wanted"},
		"port":       {Files{"Corefile": ".:5353 {\n errors\n}\nb {\n errors\n}"}, "[b.] errors", "Corefile:1: .:5353: port 5353: queries arrive at port 53 only"},
		"twice":      {Files{"Corefile": "a {\n errors\n}\na {\n log\n}"}, "[a.] errors", "Corefile:4: a: the zone a. has a server block already"},
		"file":       {Files{"Corefile": ". {\n hosts /etc/shadow {\n 10.0.0.1 a\n }\n}"}, "[.] hosts", `Corefile:2: hosts: there is no file "/etc/shadow"; files are the keys of the ConfigMaps`},
		"regex":      {Files{"Corefile": ". {\n rewrite name regex (a b\n}"}, "[.] rewrite", "Corefile:2: rewrite: error parsing regexp: missing closing ): `(a`; the rule is left out"},
		"upstream":   {Files{"Corefile": ". {\n forward . dns.example\n}"}, "[.] forward", "Corefile:2: forward: \"dns.example\" is no address of a server\nCorefile:2: forward: no server to ask; the directive is left out"},
		"brace":      {Files{"Corefile": ". {\n errors\n"}, "", "Corefile:1: a brace is missing"},
		"no block":   {Files{"Corefile": ". errors\n"}, "", "Corefile:1: . errors: a brace is missing"},
		"closed":     {Files{"Corefile": "}\n. {\n}\n"}, "", "Corefile:1: a server block begins with its zones and a brace"},
		"itself":     {Files{"Corefile": "import Corefile"}, "", "Corefile:1: import: more than 100"},
		"quote":      {Files{"Corefile": ". {\n log \"\n}"}, "", "Corefile:2: a quote has no end"},
		"too large":  {Files{"Corefile": strings.Repeat("#", maxText+1)}, "", "the configuration has 524289 bytes; 524288 are the most"},
		"nested":     {Files{"Corefile": ". {\n cache {\n a {\n }\n }\n}"}, "", "Corefile:3: a: a brace in a directive's block"},
		"many zones": {Files{"Corefile": strings.Repeat("a {\n}\n", 65)}, "", "Corefile:129: more than 64 server blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			servers, problems, err := Read(c.files, "Corefile")
			var got, wrong []string
			for _, s := range servers {
				got = append(got, fmt.Sprintf("%v %s", s.Zones, strings.Join(s.Directives, " ")))
			}
			for _, p := range problems {
				wrong = append(wrong, p.String())
			}
			if err != nil {
				wrong = append(wrong, err.Error())
			}
			if g := strings.Join(got, "\n"); g != c.want {
				t.Errorf("is\n%s\nwant\n%s", g, c.want)
			}
			if w := strings.Join(wrong, "\n"); w != c.wrong {
				t.Errorf("says\n%s\nwant\n%s", w, c.wrong)
			}
		})
	}
}

func TestDirectives(t *testing.T) {
	servers, problems, err := Read(Files{"Corefile": `. {
	kubernetes cluster.local 10.0.0.0/8 {
		pods verified
		endpoint_pod_names
		ttl 30
		namespaces a b
		ignore empty_service
	}
	hosts {
		10.0.0.1 A.example b.example
		fd00::1 a.example
		ttl 60
	}
	forward example.org 10.1.1.1 [fd00::2]:5353 tls://9.9.9.9%dns.quad9.net:8853 {
		except sub.example.org
		policy sequential
		max_fails 5
		health_check 2s no_rec domain example.org
		force_tcp
		failover REFUSED
	}
	forward . /etc/resolv.conf
	cache 60 {
		success 100 50 2
		denial 50
		prefetch 5 30s 20%
		serve_stale 2h verify
		keepttl
	}
	rewrite continue name suffix .a.example .b.example answer auto
	rewrite name exact X.example y.example
	rewrite stop {
		name regex (.*)\.c {1}.d
		answer name (.*)\.d {1}.c
		answer value (.*)\.e {1}.f
	}
}`}, "Corefile")
	if err != nil || len(problems) > 0 || len(servers) != 1 {
		t.Fatal(servers, problems, err)
	}
	s := servers[0]
	for want, got := range map[string]any{
		"&{[cluster.local. 10.in-addr.arpa.] verified true [a b] true 30 {false []}}": s.Kubernetes,
		"map[a.example.:[10.0.0.1 fd00::1] b.example.:[10.0.0.1]]":                    s.Hosts.Addresses,
		"map[10.0.0.1:[a.example. b.example.] fd00::1:[a.example.]]":                  s.Hosts.Names,
		"60": s.Hosts.TTL,
		"[{10.1.1.1:53 false } {[fd00::2]:5353 false } {9.9.9.9:8853 true dns.quad9.net}]": s.Forwards[0].Upstreams,
		"example.org. [sub.example.org.] sequential 5 2s example.org. true true [5]":       strings.Trim(fmt.Sprintln(s.Forwards[0].From, s.Forwards[0].Except, s.Forwards[0].Policy, s.Forwards[0].MaxFails, s.Forwards[0].HealthCheck, s.Forwards[0].HealthDomain, s.Forwards[0].NoRecursion, s.Forwards[0].ForceTCP, s.Forwards[0].Failover), "\n"),
		"{. [] [] true false  random 2 500ms . false 0 []}":                                s.Forwards[1],
		"{[] 50s 1m0s 2s 0s 150 5 30s 20 2h0m0s false 5s true}":                            *s.Cache,
		"3": len(s.Rewrites),
		"true suffix .a.example. .b.example. true": strings.Trim(fmt.Sprintln(s.Rewrites[0].Continue, s.Rewrites[0].Match, s.Rewrites[0].From, s.Rewrites[0].To, s.Rewrites[0].Auto), "\n"),
		"x.example. y.example. true":               fmt.Sprint(s.Rewrites[1].From, " ", s.Rewrites[1].To, " ", s.Rewrites[1].Auto),
		`false (.*)\.d {1}.c`:                      fmt.Sprintf("%v %v %v", s.Rewrites[2].Answers[0].Value, s.Rewrites[2].Answers[0].From, s.Rewrites[2].Answers[0].To),
		`true (.*)\.e {1}.f`:                       fmt.Sprintf("%v %v %v", s.Rewrites[2].Answers[1].Value, s.Rewrites[2].Answers[1].From, s.Rewrites[2].Answers[1].To),
	} {
		if fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	if newCache().Stale != time.Hour || !(Fall{On: true, Zones: []string{"ip6.arpa."}}).Through("1.ip6.arpa.") || (Fall{On: true, Zones: []string{"ip6.arpa."}}).Through("a.") {
		t.Error("defaults, or where a query falls through")
	}
}

// FuzzCorefile: whatever a ConfigMap holds is read within bounds or refused.
func FuzzCorefile(f *testing.F) {
	f.Add(k3s, "log\n", "a {\n forward . 1.1.1.1\n}")
	f.Add("(s) {\n import s\n}\n. {\n import s\n}", "", "")
	f.Add(". {\n rewrite stop {\n name regex (.*) {1} answer auto\n }\n hosts {\n ::1 a\n }\n cache 9 {\n prefetch 1 1s 10%\n}\n}", "import *", "\"")
	f.Fuzz(func(t *testing.T, main, override, server string) {
		servers, problems, err := Read(Files{"Corefile": main, "/etc/coredns/custom/a.override": override, "/etc/coredns/custom/a.server": server}, "Corefile")
		if err != nil && (servers != nil || problems != nil) || len(servers) > maxBlocks {
			t.Fatal(servers, problems, err)
		}
		for _, s := range servers {
			if len(s.Zones) == 0 || len(s.Rewrites) > maxRewrites || s.Kubernetes != nil && s.Kubernetes.Domain() == "" {
				t.Fatalf("%+v", s)
			}
			for _, fw := range s.Forwards {
				if len(fw.Upstreams) > maxUpstreams || len(fw.Upstreams) == 0 && !fw.ResolvConf {
					t.Fatalf("%+v", fw)
				}
			}
		}
	})
}
