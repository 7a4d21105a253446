#!/bin/sh
# Stands for the work of the pages: what one machine does for all.
echo "scheduling as the leader"
