#!/bin/sh
echo "scheduling as the leader"
