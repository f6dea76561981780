package oracle

import (
	"cmp"
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

var (
	recording  = flag.Bool("record", false, "record the answers of the server named by KNARR_ORACLE")
	live       = flag.Bool("live", false, "compare with KNARR_ORACLE's answers of now")
	everything = flag.Bool("everything", false, "send every case instead of a sample; only with -live")
	only       = flag.String("kinds", "", "only kinds that match this expression")
	details    = flag.String("details", "", "print the differences of cases that match this expression")
)

// TestUpstream holds our answers to upstream's.
func TestUpstream(t *testing.T) {
	if *everything && !*live {
		t.Fatal("-everything has no recorded answers: use -live")
	}
	var theirs *server
	if *recording || *live {
		theirs = upstream(t)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ours, known := our(t), readKnown(t)
	equal, total := 0, 0
	groups := map[string][]string{}
	for _, k := range corpus(t) {
		if ok, err := regexp.MatchString(*only, k.name); err != nil || !ok {
			continue
		}
		var want map[string]answer
		if theirs != nil {
			all := theirs.play(t, k)
			if *recording {
				write(t, k.name, all)
			}
			want = map[string]answer{}
			for _, a := range all {
				want[a.Name] = a
			}
		}
		if !*live {
			want = read(t, k.name)
		}
		good, got := 0, ours.play(t, k)
		for _, a := range got {
			w, ok := want[a.Name]
			if !ok {
				t.Errorf("%s: %s: no recorded answer: use -record", k.name, a.Name)
				continue
			}
			diff := differences(w, a)
			if len(diff) == 0 {
				good++
				continue
			}
			diff = slices.DeleteFunc(diff, func(d string) bool { return known.match(k.name, d) })
			listed := len(diff) == 0 || known.match(k.name, a.Name)
			if *details != "" && !listed {
				if ok, _ := regexp.MatchString(*details, k.name+" "+a.Name); ok {
					t.Logf("%s: %s\n\t%s", k.name, a.Name, strings.Join(diff, "\n\t"))
				}
			}
			if !listed {
				key := alike(diff)
				groups[key] = append(groups[key], k.name+": "+a.Name)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d answers are recorded, %d were wanted: use -record", k.name, len(want), len(got))
		}
		equal, total = equal+good, total+len(got)
		t.Logf("%5d of %5d equal: %s", good, len(got), k.name)
	}
	t.Logf("%5d of %5d equal", equal, total)
	byCount := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(groups[b]), len(groups[a])), cmp.Compare(a, b))
	})
	for _, key := range byCount {
		t.Errorf("%d differ alike, such as %s\n\t%s", len(groups[key]), strings.Join(groups[key][:min(3, len(groups[key]))], "; "), key)
	}
	if *only == "" && !*everything {
		known.unused(t)
	}
}

var figures = regexp.MustCompile(`\[?\d+\]?|a{60,}`)

// alike is what differences of one cause have in common.
func alike(diff []string) string {
	for i, d := range diff {
		diff[i] = figures.ReplaceAllString(d, "#")
	}
	return strings.Join(diff[:min(6, len(diff))], "\n\t")
}

func upstream(t *testing.T) *server {
	host := os.Getenv("KNARR_ORACLE")
	if host == "" {
		t.Fatal("-record and -live need KNARR_ORACLE and KNARR_ORACLE_TOKEN")
	}
	s := &server{host: host, token: os.Getenv("KNARR_ORACLE_TOKEN"), client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: workers}}}
	s.prepare(t)
	return s
}

// our server has what upstream's was started with: its range of addresses, and
// the one user that asks.
func our(t *testing.T) *server {
	api, _ := apitest.New(t, func(c *apiserver.Config) {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	})
	cfg := api.Config(&user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s := &server{host: cfg.Host, client: client}
	s.prepare(t)
	return s
}

// A line of testdata/differences.txt: kind | case or statement | reason, with *
// for anything.
type line struct {
	kind, name *regexp.Regexp
	text       string
	used       bool
}

type lines []*line

func readKnown(t *testing.T) (all lines) {
	data, err := os.ReadFile(filepath.Join("testdata", "differences.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		parts := strings.SplitN(text, " | ", 3)
		if len(parts) != 3 || parts[2] == "" {
			t.Fatalf("testdata/differences.txt: want kind | case | reason: %s", text)
		}
		all = append(all, &line{kind: glob(parts[0]), name: glob(parts[1]), text: text})
	}
	return all
}

func glob(s string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(s), `\*`, ".*") + "$")
}

func (l lines) match(kind, name string) (ok bool) {
	for _, k := range l {
		if k.kind.MatchString(kind) && k.name.MatchString(name) {
			k.used, ok = true, true
		}
	}
	return ok
}

func (l lines) unused(t *testing.T) {
	for _, k := range l {
		if !k.used {
			t.Error(fmt.Errorf("testdata/differences.txt: nothing differs any more: %s", k.text))
		}
	}
}
