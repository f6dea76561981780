package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
)

// components are the names in the table that the method components of a file
// returns, in its order.
func components(file string) (names []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "components" && fn.Body != nil {
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if name, ok := componentName(n); ok {
					names = append(names, name)
				}
				return true
			})
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: found no table of components", file)
	}
	return names, nil
}

// componentName is the name in a literal component{"name", run}.
func componentName(n ast.Node) (name string, ok bool) {
	lit, ok := n.(*ast.CompositeLit)
	if !ok || len(lit.Elts) == 0 {
		return "", false
	}
	typ, ok := lit.Type.(*ast.Ident)
	if !ok || typ.Name != "component" {
		return "", false
	}
	value, ok := lit.Elts[0].(*ast.BasicLit)
	if !ok || value.Kind != token.STRING {
		return "", false
	}
	name, err := strconv.Unquote(value.Value)
	return name, err == nil
}

// A caption is what the picture says of a component: what it does, and what of the
// host it writes, in up to two lines.
type caption struct {
	does string
	host []string
}

// captions are those of all components of the table.
var captions = map[string]caption{
	"kube-scheduler":           {does: "gives pods nodes"},
	"kube-controller-manager":  {does: "workloads, endpoints, clean-up"},
	"cloud-controller-manager": {does: "nodes as machines are listed"},
	"dns-announcer":            {does: "the Service kube-dns"},
	"metrics-server":           {does: "what pods and nodes use"},
	"storage-class":            {does: "the class local-path"},
	"runtime-classes":          {does: "classes of runtimes that nodes have"},
	"service-lb":               {does: "addresses for LoadBalancers"},
	"gateway-status":           {does: "status of Ingresses and Gateways"},
	"servers":                  {does: "etcd members, API endpoints"},
	"node-keys":                {does: "which Node a joined key is of"},
	"cluster-info":             {does: "address and authority, for anybody"},
	"certificates":             {does: "renews the server's own in time"},
	"network":                  {"the pod network of this node", []string{"CNI plugin: links, addresses,", "host ports, what pods may send"}},
	"peers":                    {"ways to pods of other nodes", []string{"VXLAN, or plain routes"}},
	"kube-proxy":               {"Services to endpoints", []string{"nftables, by netlink"}},
	"network-policy":           {"NetworkPolicies of this node's pods", []string{"nftables, by netlink"}},
	"dns":                      {"names of the cluster", []string{"answers the pods of this node"}},
	"local-storage":            {"claims to volumes, by CSI", []string{"directories with quotas,", "images on loop devices"}},
	"address-announcer":        {"load balancers' addresses", []string{"ARP and NDP on this node's links"}},
	"gateway":                  {"serves Ingresses and Gateways", []string{"ports 80 and 443, while there are any"}},
	"kubelet":                  {"runs the node's pods, by CRI", []string{"containerd, in this process", "shim, containers"}},
}
