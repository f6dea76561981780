module go.etcd.io/etcd/server/v3

go 1.26.8
