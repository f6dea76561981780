package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"knarr/internal/nft"
	"knarr/node/cni/network"
)

// Firewalls of the host, such as those that Docker, ufw and firewalld write, drop what
// no rule of theirs accepts, and no rule in a table of knarr's own can change that. So
// two rules for each family of pods stand at the beginning of such a chain: what pods
// send and what is sent to them is forwarded, and the policies in knarr's tables decide
// about it. In a chain of what comes to the host itself the rules are for the queries
// that pods send to the node's DNS. The rules have the form that iptables gives its own,
// so that it lists them too.

// maxChains bounds the chains of others that are looked at.
const maxChains = 256

// admit makes the rules be in the chains of others that need them. One that cannot be
// changed does not keep the others from being.
func admit(c Config, n *network.Conf) error {
	chains, err := foreignChains()
	if err != nil {
		return err
	}
	var errs []error
	for _, ch := range chains {
		if !dropping(ch) {
			continue
		}
		have, err := rulesOf(ch)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		want := admission(n, c.DNSPort, ch)
		if slices.ContainsFunc(have, func(r ruleID) bool { return r.comment == n.Table }) || len(want) == 0 {
			continue
		}
		conn, err := nft.Open()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		for _, exprs := range want {
			conn.InsertRule(&nftables.Rule{Table: ch.Table, Chain: ch, Exprs: exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, n.Table)})
		}
		if err := conn.Flush(); err != nil {
			err = fmt.Errorf("let pods through chain %s of nftables table %s: %w", ch.Name, ch.Table.Name, err)
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("%w: the table belongs to a process; with firewalld, firewall-cmd --permanent --zone=trusted --add-source=RANGE for %s", err, joined(n.ClusterCIDRs))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func joined(list []netip.Prefix) string {
	var s []string
	for _, p := range list {
		s = append(s, p.String())
	}
	return strings.Join(s, ", ")
}

// withdraw takes the rules of a table's pods out of all chains of others.
func withdraw(table string) error {
	chains, err := foreignChains()
	if err != nil {
		return err
	}
	var errs []error
	for _, ch := range chains {
		have, err := rulesOf(ch)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, r := range have {
			if r.comment != table {
				continue
			}
			conn, err := nft.Open()
			if err != nil {
				return fmt.Errorf("nftables: %w", err)
			}
			if err = conn.DelRule(&nftables.Rule{Table: ch.Table, Chain: ch, Handle: r.handle}); err == nil {
				err = conn.Flush()
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove a rule of chain %s of nftables table %s: %w", ch.Name, ch.Table.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// foreignChains are the filters of others for what the host forwards and receives.
func foreignChains() (chains []*nftables.Chain, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, ch := range all {
		family := ch.Table.Family
		switch {
		case ch.Hooknum == nil || ch.Type != nftables.ChainTypeFilter || strings.HasPrefix(ch.Table.Name, "knarr"):
		case family != nftables.TableFamilyINet && family != nftables.TableFamilyIPv4 && family != nftables.TableFamilyIPv6:
		case *ch.Hooknum == *nftables.ChainHookForward || *ch.Hooknum == *nftables.ChainHookInput:
			chains = append(chains, ch)
		}
	}
	return chains[:min(len(chains), maxChains)], nil
}

// dropping reports whether a chain drops what no rule of it accepts: by its policy, or
// as firewalld's by a last rule.
func dropping(ch *nftables.Chain) bool {
	return ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop || ch.Table.Name == "firewalld" && (ch.Name == "filter_FORWARD" || ch.Name == "filter_INPUT")
}

// A ruleID is a rule as far as it matters whose it is.
type ruleID struct {
	handle  uint64
	comment string
}

// rulesOf gives a chain's rules; what they say is not read.
func rulesOf(ch *nftables.Chain) (rules []ruleID, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	defer conn.Close()
	which := netlink.NewAttributeEncoder()
	which.String(unix.NFTA_RULE_TABLE, ch.Table.Name)
	which.String(unix.NFTA_RULE_CHAIN, ch.Name)
	attrs, err := which.Encode()
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(ch.Table.Family), unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of chain %s of nftables table %s: %w", ch.Name, ch.Table.Name, err)
	}
	for _, m := range answers {
		if len(m.Data) < 4 {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		var r ruleID
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_HANDLE:
				r.handle = binaryutil.BigEndian.Uint64(ad.Bytes())
			case unix.NFTA_RULE_USERDATA:
				r.comment = commentOf(ad.Bytes())
			}
		}
		if err := ad.Err(); err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// commentOf finds the comment in what a program has noted of its rule: fields of a type,
// a length and so many bytes.
func commentOf(noted []byte) string {
	for len(noted) >= 2 {
		end := 2 + int(noted[1])
		if end > len(noted) {
			return ""
		}
		if userdata.Type(noted[0]) == userdata.TypeComment {
			return strings.TrimRight(string(noted[2:end]), "\x00")
		}
		noted = noted[end:]
	}
	return ""
}

// admission are the rules that a chain needs. Pure.
func admission(n *network.Conf, dns uint16, ch *nftables.Chain) (rules [][]expr.Any) {
	ours := func(p netip.Prefix) bool {
		return ch.Table.Family == nftables.TableFamilyINet || (ch.Table.Family == nftables.TableFamilyIPv6) == p.Addr().Is6()
	}
	if *ch.Hooknum == *nftables.ChainHookForward {
		for _, p := range n.ClusterCIDRs {
			if ours(p) {
				rules = append(rules, network.Accept(ch.Table.Family, p, true), network.Accept(ch.Table.Family, p, false))
			}
		}
		return rules
	}
	if dns == 0 {
		return nil
	}
	for _, p := range n.PodCIDRs {
		if ours(p) {
			for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
				rules = append(rules, network.AcceptFromPods(ch.Table.Family, n.Bridge, p, proto, dns))
			}
		}
	}
	return rules
}
